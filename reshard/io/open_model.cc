// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/open_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "reshard/base/closest_name.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/checkpoint/rank_index.h"
#include "reshard/io/checkpoint/tensor_list.h"
#include "reshard/io/example_configs.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/hf/hub.h"
#include "reshard/io/identify/adapters/merge_adapters.h"
#include "reshard/io/identify/apply_config.h"
#include "reshard/io/identify/names.h"
#include "reshard/io/identify/opaque.h"
#include "reshard/io/identify/shard_of_set.h"
#include "reshard/io/identify/stored_scales.h"
#include "reshard/io/identify/tensor_lists.h"
#include "reshard/io/torch_dist/megatron_layout.h"
#include "reshard/model/canonical.h"
#include "reshard/model/name_pattern.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxModelConfigBytes = std::size_t{16} << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// True if a tensor of the model or of its files matches.
bool has_name_like(const Model& model, const std::string& pattern) {
  if (!matching_names(*model.tensors, {pattern}).empty()) return true;
  if (!model.weights) return false;
  const TensorPieces& pieces = model.weights->pieces();
  const auto matches = [&](const auto& entry) {
    return match_pattern(pattern, entry.name).has_value();
  };
  if (std::ranges::any_of(pieces.others, matches) || std::ranges::any_of(pieces.tensors, matches))
    return true;
  const auto& files = model.weights->files();
  return std::any_of(files.begin(), files.end(), [&](const SafetensorsFile& file) {
    return std::any_of(file.tensors().begin(), file.tensors().end(), [&](const StoredTensor& t) {
      return match_pattern(pattern, t.name).has_value();
    });
  });
}

/// False for a single file of a checkpoint, to which the config beside it need not apply.
bool is_whole(const std::string& path) {
  std::error_code ignored;
  const auto name = fs::path(path).filename().string();
  return fs::is_directory(path, ignored) || name == kHfFile || !name.ends_with(".safetensors");
}

/// A model without weights whose config lists its tensors, of any class.
Result<Model> listed_model(const std::string& text, const std::string& path, ModelSpec tensors,
                           const ModelOptions& options) {
  if (options.layers)
    return fail(
        Code::invalid_argument,
        fmt::format("{}: lists its tensors; the number of layers can be chosen for a config "
                    "that does not",
                    path));
  Model model;
  model.name = text;
  model.ignore = options.ignore;
  model.config_path = path;
  model.model_type = model_type_of(path);
  model.tensors = std::make_shared<ModelSpec>(tensors);
  auto applied = identify::apply_config(std::move(tensors), model);
  if (applied) return model;
  if (options.exact && applied.error().code != Code::unsupported)
    return tl::unexpected(std::move(applied).error());
  model.no_config = applied.error().message;
  identify::leave_out_ignored(model);
  return model;
}

Result<Model> config_model(const std::string& text, const std::string& path,
                           const ModelOptions& options) {
  if (!options.merge.empty())
    return fail(Code::invalid_argument,
                fmt::format("{}: is a config; an adapter is merged into weights", path));
  if (options.prefix && !options.prefix->empty())
    return fail(Code::invalid_argument,
                fmt::format("{}: is a config; a prefix can be taken from the names of a checkpoint "
                            "of torch.distributed.checkpoint only",
                            path));
  const auto text_of_file = RESHARD_TRY(read_text_file(path, kMaxModelConfigBytes));
  if (auto tensors = RESHARD_TRY(checkpoint::listed_tensors(text_of_file, path)))
    return listed_model(text, path, *std::move(tensors), options);
  Model model;
  model.name = text;
  model.ignore = options.ignore;
  model.config_path = path;
  model.config = RESHARD_TRY(read_config(path));
  model.model_type = model.config->model_type;
  if (options.layers) {
    const auto trimmed = RESHARD_TRY(config_with_layers(text_of_file, *options.layers, path));
    model.config = RESHARD_TRY(parse_config(trimmed, path));
  }
  model.tensors = std::make_shared<ModelSpec>(RESHARD_TRY(canonical_tensors(*model.config)));
  return model;
}

Result<> check_options(const std::string& path, const ModelOptions& options) {
  if (options.layers)
    return fail(Code::invalid_argument,
                fmt::format("{}: is a checkpoint; the number of layers can be chosen for a "
                            "config.json only",
                            path));
  std::error_code ignored;
  const bool file = path.ends_with(".safetensors") && fs::is_regular_file(path, ignored);
  return options.exact && file ? identify::check_not_shard(path) : Result<>();
}

/// Finds the model among the tensors of a checkpoint in pieces. @return why it is not known which
/// tensors are the model's, if that is no error
Result<std::string> name_tensors(const ModelOptions& options, Model& model) {
  Checkpoint& weights = *model.weights;
  if (weights.kind() != Checkpoint::Kind::dcp) {
    if (!options.prefix || options.prefix->empty()) return std::string();
    return fail(Code::invalid_argument,
                fmt::format("{}: a prefix can be taken from the names of a checkpoint of "
                            "torch.distributed.checkpoint only",
                            model.name));
  }
  if (options.exact) RESHARD_TRY(identify::check_unread(weights, options.ignore));
  auto named = identify::take_names(weights, options);
  if (named) return std::string();
  if (options.exact || options.prefix) return tl::unexpected(std::move(named).error());
  return std::move(named).error().message;
}

/// All tensors of a checkpoint, without the scales of quantised ones that its layout tells.
Result<ModelSpec> tensors_of(Model& model) {
  const Checkpoint& checkpoint = *model.weights;
  const bool ranks = checkpoint.kind() == Checkpoint::Kind::ranks;
  const auto index_path = (fs::path(checkpoint.folder()) / kRankIndexFile).string();
  ModelSpec stored = ranks ? RESHARD_TRY(read_rank_index_tensors(index_path))
                           : RESHARD_TRY(identify::stored_tensors(checkpoint));
  if (ranks) RESHARD_TRY(identify::take_scales_of_ranks(stored, model));
  if (stored.size() == 0)
    return fail(Code::corrupt, fmt::format("{}: holds no tensors", model.name));
  return stored;
}

Model without_config(Model model) {
  identify::leave_out_ignored(model);
  identify::leave_out_others(model);
  identify::note_opaque(model);
  return model;
}

tl::unexpected<Error> unknown_model(const std::string& text) {
  if (!hf::is_hub_id(text))
    return fail(
        Code::not_found,
        fmt::format("model '{}': no such file or folder, and no example of that name{}; "
                    "examples are {}",
                    text, did_you_mean(text, example_names()), fmt::join(example_names(), ", ")));
  const auto example = nearest_example(text.substr(text.find('/') + 1));
  return fail(
      Code::not_found,
      fmt::format("model '{0}': no such file or folder, and no repository of the Hugging Face hub "
                  "in the cache {1}; download it first (hf download {0}), nothing is downloaded "
                  "here{2}",
                  text, hf::hub_cache(),
                  example ? fmt::format("; the nearest example is {}", *example) : ""));
}

/// The snapshot in the hub's cache that `text` names, if no such path exists; else `text`.
std::string in_hub_cache(const std::string& text) {
  if (is_there(text) || !hf::is_hub_id(text)) return text;
  return hf::cached_snapshot(text).value_or(text);
}

}  // namespace

std::set<std::string> matching_names(const ModelSpec& tensors,
                                     const std::set<std::string>& patterns) {
  std::set<std::string> names;
  for (const CanonicalTensor& t : tensors.tensors())
    if (identify::matches_any(patterns, t.name)) names.insert(t.name);
  return names;
}

Result<std::set<std::string>> names_of(const std::set<std::string>& patterns, std::string_view what,
                                       const ModelSpec& tensors) {
  for (const std::string& pattern : patterns) {
    if (!matching_names(tensors, {pattern}).empty()) continue;
    std::vector<std::string_view> known;
    for (const CanonicalTensor& t : tensors.tensors()) known.emplace_back(t.name);
    return fail(Code::not_found, fmt::format("pattern '{}' to {} matches no tensor{}", pattern,
                                             what, did_you_mean(pattern, known)));
  }
  return matching_names(tensors, patterns);
}

Result<> check_ignored(const Model& model, const Model* other,
                       const std::set<std::string>& lacked) {
  for (const std::string& pattern : model.ignore) {
    if (has_name_like(model, pattern) || lacked.contains(pattern) ||
        (other != nullptr && has_name_like(*other, pattern)))
      continue;
    const std::string both = other == nullptr ? "" : " or " + other->name;
    std::vector<std::string_view> known;
    if (model.tensors)
      for (const CanonicalTensor& t : model.tensors->tensors()) known.emplace_back(t.name);
    return fail(Code::not_found,
                fmt::format("pattern '{}' to ignore matches no tensor of {}{}{}", pattern,
                            model.name, both, did_you_mean(pattern, known)));
  }
  return {};
}

std::shared_ptr<ModelStorage> Model::make_storage() { return std::make_shared<ModelStorage>(); }

bool Model::is_dequantised() const { return stored || !storage->decoded.empty() || storage->codes; }

void Model::forget_stored() {
  stored.reset();
  stored_method.reset();
  storage->decoded.clear();
  storage->decoded_from.clear();
  storage->codes.reset();
}

Result<> Model::unchanged() const {
  if (weights) RESHARD_TRY(weights->unchanged());
  for (const SafetensorsFile& file : storage->adapters) RESHARD_TRY(file.mapping().unchanged());
  return {};
}

namespace {

Result<Model> open_weights(const std::string& text, const ModelOptions& options) {
  const std::string path = in_hub_cache(text);
  if (!is_there(path) && hf::is_hub_id(path)) return unknown_model(path);
  RESHARD_TRY(check_options(path, options));
  Model model;
  model.name = path;
  model.ignore = options.ignore;
  model.weights = RESHARD_TRY(Checkpoint::open(path));
  // Why the config cannot be applied, if that is known before it is read.
  const std::string unnamed = RESHARD_TRY(name_tensors(options, model));
  const Checkpoint& checkpoint = *model.weights;
  ModelSpec stored = RESHARD_TRY(tensors_of(model));
  model.tensors = std::make_shared<ModelSpec>(stored);
  if (is_whole(path)) model.config_path = checkpoint.config_path().value_or("");
  if (!model.config_path.empty()) model.model_type = model_type_of(model.config_path);
  if (model.config_path.empty()) {
    model.no_config = is_whole(path) ? fmt::format("{} has no config.json beside it", path)
                                     : fmt::format("{} is one file of a checkpoint", path);
    return without_config(std::move(model));
  }
  auto applied = !unnamed.empty() ? fail(Code::invalid_argument, unnamed)
                 : torch_dist::is_megatron(checkpoint.pieces())
                     ? identify::apply_megatron(model)
                     : identify::apply_config(std::move(stored), model);
  RESHARD_TRY(checkpoint.unchanged());
  if (applied) {
    identify::leave_out_others(model);
    identify::note_opaque(model);
    return model;
  }
  // Families that need no config serve other architectures.
  if (options.exact && applied.error().code != Code::unsupported)
    return tl::unexpected(std::move(applied).error());
  model.no_config = applied.error().message;
  if (checkpoint.kind() == Checkpoint::Kind::hf) {
    model.forget_stored();
    if (applied.error().code == Code::unsupported) identify::take_scales_of_unknown_class(model);
  }
  return without_config(std::move(model));
}

}  // namespace

Result<Model> open_checkpoint(const std::string& text, const ModelOptions& options) {
  Model model = RESHARD_TRY(open_weights(text, options));
  if (model.storage->codes)
    model.storage->codes->tensors = std::make_shared<const ModelSpec>(
        RESHARD_TRY(stored_tensors(*model.tensors, *model.storage->codes)));
  RESHARD_TRY(identify::merge_adapters(options.merge, model));
  return model;
}

Result<Model> open_model(const std::string& text, const ModelOptions& options) {
  std::error_code ignored;
  const fs::path path = in_hub_cache(text);
  if (fs::is_directory(path, ignored)) {
    const fs::path config = path / kConfigFile;
    if (!Checkpoint::is_in(path.string()) && is_there(config))
      return config_model(text, config.string(), options);
    return open_checkpoint(path.string(), options);
  }
  if (is_there(path)) {
    const bool index = text.ends_with(".index.json") || path.filename() == kRankIndexFile;
    if (path.extension() == ".json" && !index) return config_model(text, text, options);
    return open_checkpoint(text, options);
  }
  if (const auto example = find_example(text)) return config_model(text, *example, options);
  return unknown_model(text);
}

}  // namespace reshard
