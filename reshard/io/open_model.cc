// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/open_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include "reshard/io/checkpoint/rank_index.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/example_configs.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"
#include "reshard/io/hf/quantization.h"
#include "reshard/io/torch_dist/megatron_layout.h"
#include "reshard/model/canonical.h"
#include "reshard/model/name_pattern.h"
#include "reshard/model/names.h"
#include "reshard/model/quant/notation.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxModelConfigBytes = std::size_t{16} << 20;
constexpr std::string_view kRouterBias = ".e_score_correction_bias";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// A box of a tensor as it is stored.
struct StoredPiece {
  Box box;
  Dims order;  ///< of its dimensions in memory.
  const CheckpointTensor* tensor = nullptr;
};

/// All tensors of the files, in their order.
Result<ModelSpec> stored_tensors(const Checkpoint& checkpoint) {
  ModelSpec spec;
  for (const TensorSpec& t : checkpoint.whole_tensors()) {
    auto added = spec.add(t.name, t.shape, t.dtype);
    if (!added) return tl::unexpected(std::move(added).error().in(checkpoint.folder()));
  }
  return spec;
}

/// A copy without these tensors.
ModelSpec without(const ModelSpec& spec, const std::vector<std::string>& names) {
  const std::set<std::string_view> out(names.begin(), names.end());
  ModelSpec rest;
  for (const CanonicalTensor& t : spec.tensors())
    if (!out.contains(t.name))
      (void)rest.add(t.name, t.shape, t.dtype, t.merged);  // was valid in `spec`
  return rest;
}

/// True for the tables of rotary embeddings that early transformers stored in every layer.
bool is_stray_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEndings = {
      ".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

bool matches_any(const std::set<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return match_pattern(pattern, name).has_value();
  });
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

/// Removes from `stored` the tensors that the config lacks and that may be left out.
void leave_out_strays(const ModelSpec& config, ModelSpec& stored, Model& model) {
  std::vector<std::string> strays;
  for (const CanonicalTensor& t : stored.tensors())
    if (!config.find(t.name) && (is_stray_buffer(t.name) || matches_any(model.ignore, t.name)))
      strays.push_back(t.name);
  if (strays.empty()) return;
  stored = without(stored, strays);
  model.left_out = std::move(strays);
}

/// Removes the tensors to ignore from a model without a config.
void leave_out_ignored(Model& model) {
  const auto names = matching_names(*model.tensors, model.ignore);
  if (names.empty()) return;
  model.left_out.assign(names.begin(), names.end());
  model.tensors = std::make_shared<ModelSpec>(without(*model.tensors, model.left_out));
}

/// The tensors in the order of the config, with the dtypes of the checkpoint. @pre check_against
/// succeeded
ModelSpec in_order_of(const ModelSpec& config, const ModelSpec& checkpoint) {
  ModelSpec ordered;
  for (const CanonicalTensor& t : config.tensors())
    (void)ordered.add(t.name, t.shape, checkpoint[*checkpoint.find(t.name)].dtype, t.merged);
  return ordered;
}

/// The pieces of a tensor by where they lie in it; one if it is stored whole, none if it is not
/// stored.
std::vector<StoredPiece> stored_as(const Checkpoint& checkpoint, const std::string& name) {
  std::vector<StoredPiece> out;
  if (checkpoint.kind() == Checkpoint::Kind::hf) {
    const auto* whole = find_tensor(checkpoint.tensors(), name);
    if (whole != nullptr) out.push_back({Box::whole(whole->shape), whole->shape, whole});
    return out;
  }
  const TensorPieces& pieces = checkpoint.pieces();
  for (const TensorPiece& piece : pieces.pieces)
    if (pieces.tensors[piece.tensor].name == name)
      out.push_back(
          {piece.box, piece.order, find_tensor(checkpoint.tensors(Rank(0)), piece.local)});
  std::ranges::sort(out, [](const auto& x, const auto& y) { return before(x.box, y.box); });
  return out;
}

bool same_bytes(const Checkpoint& checkpoint, const StoredPiece& a, const StoredPiece& b) {
  const auto bytes = checkpoint.data(*a.tensor), other = checkpoint.data(*b.tensor);
  const bool same = a.tensor->dtype == b.tensor->dtype && a.box == b.box && a.order == b.order &&
                    std::memcmp(bytes.data(), other.data(), bytes.size()) == 0;
  checkpoint.drop(*a.tensor);
  checkpoint.drop(*b.tensor);
  return same;
}

/// Some writers store a tensor again under another name. Checks that the copy is equal; the error
/// ends with `advice`. @return whether the copy exists
Result<bool> check_copy(const Checkpoint& checkpoint, const std::string& copy,
                        const std::string& original, const std::string& advice) {
  const auto a = stored_as(checkpoint, copy), b = stored_as(checkpoint, original);
  if (a.empty() || b.empty()) return !a.empty();
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = same_bytes(checkpoint, a[i], b[i]);
  if (same) return true;
  return fail(Code::corrupt,
              fmt::format("'{}' is stored and differs from '{}'; {}", copy, original, advice));
}

/// Removes from `stored` the copies that the config explains, and records in the config whether the
/// modules for multi-token prediction have theirs.
Result<> take_copies(const Model& model, ModelConfig& config, ModelSpec& stored) {
  const Checkpoint& checkpoint = *model.weights;
  if (checkpoint.kind() == Checkpoint::Kind::ranks) return {};
  const HfNames names(config);
  std::vector<std::string> copies;
  if (config.tie_word_embeddings && stored.find(names.lm_head())) {
    auto head = check_copy(checkpoint, names.lm_head(), names.embedding(),
                           "tie_word_embeddings is true: set it to false or remove the tensor");
    if (!head) return tl::unexpected(std::move(head).error().in(model.config_path));
    copies.push_back(names.lm_head());
  }
  for (const auto& [alias, name] : names.aliases()) {
    auto there =
        check_copy(checkpoint, alias, name,
                   "modules for multi-token prediction share that tensor: remove the copy, "
                   "or the config.json, without which rules:FILE reads all tensors");
    if (!there) return tl::unexpected(std::move(there).error().in(model.name));
    if (*there) copies.push_back(alias);
    if (!*there) config.mtp_copies = false;
  }
  if (!copies.empty()) stored = without(stored, copies);
  return {};
}

/// transformers drops all modules for multi-token prediction but keeps their number in the config.
void forget_missing_mtp(const ModelSpec& stored, ModelConfig& config) {
  if (config.num_mtp == 0) return;
  const HfNames names(config);
  std::vector<std::string> prefixes = {"mtp."};
  if (config.mtp_names == MtpNames::trailing)
    for (Index m = 0; m < config.num_mtp; ++m) prefixes.push_back(names.layer({0, m}, ""));
  for (const CanonicalTensor& t : stored.tensors())
    for (const std::string& prefix : prefixes)
      if (t.name.starts_with(prefix)) return;
  config.num_mtp = 0;
  config.mtp_block.clear();
}

/// The path of ModelOpt's file about a checkpoint whose config does not say how it is stored.
std::string config_beside(const Model& model) {
  if (model.weights->kind() != Checkpoint::Kind::hf) return "";
  const auto path = fs::path(model.weights->folder()) / "hf_quant_config.json";
  return is_there(path) ? path.string() : "";
}

Result<StoredWeights> read_stored_weights(const Model& model) {
  const auto text = RESHARD_TRY(read_text_file(model.config_path, kMaxModelConfigBytes));
  const std::string beside = config_beside(model);
  if (beside.empty() || !RESHARD_TRY(parse_config(text, model.config_path)).quantization.empty())
    return stored_weights(text, model.config_path);
  const auto other = RESHARD_TRY(read_text_file(beside, kMaxModelConfigBytes));
  return stored_weights_beside(other, beside);
}

/// Takes the scales of quantised weights out of `stored`, and notes how they are stored.
Result<> take_scales(const ModelConfig& config, ModelSpec& stored, Model& model) {
  if (model.weights->kind() != Checkpoint::Kind::hf) return {};  // its layout says
  auto weights = read_stored_weights(model);
  if (!weights)
    return fail(weights.error().code,
                fmt::format("{}; describe the tensors in a layout rules:FILE, or remove the key "
                            "where the weights are plain",
                            weights.error().message));
  auto plain = plain_tensors(stored, weights->format, weights->method, config.dtype);
  if (!plain) return tl::unexpected(std::move(plain).error().in(model.name));
  if (plain->stored.tensors.empty())
    return fail(
        Code::unsupported,
        fmt::format("{}: quantization_config says {}, but no tensor is stored as {}; remove "
                    "the key where the weights are plain",
                    model.config_path, in_quotes(config.quantization), to_string(weights->format)));
  stored = std::move(plain->tensors);
  model.stored = std::move(plain->stored);
  model.stored_method = weights->method;
  return {};
}

std::vector<CanonicalTensor> take_activation_scales(ModelSpec& stored) {
  std::vector<CanonicalTensor> scales;
  std::vector<std::string> names;
  for (const CanonicalTensor& t : stored.tensors()) {
    if (!is_activation_scale(t, stored)) continue;
    scales.push_back(t);
    names.push_back(t.name);
  }
  if (!names.empty()) stored = without(stored, names);
  return scales;
}

/// What a checkpoint in ranks has of quantised tensors, by its layout.
Result<> take_scales_of_ranks(ModelSpec& stored, Model& model) {
  auto spec = parse_layout(model.weights->layout());
  if (!spec) return {};  // own_layout() says what is wrong with it
  const auto notation = take_quant(*spec);
  if (!notation || !*notation) return {};
  const auto config_path = model.weights->config_path();
  const auto config = config_path ? read_config(*config_path) : fail(Code::not_found, "");
  auto plain = plain_tensors(stored, (*notation)->format, std::nullopt,
                             config ? config->dtype : DType::bf16);
  if (!plain) return tl::unexpected(std::move(plain).error().in(model.name));
  stored = std::move(plain->tensors);
  model.stored = std::move(plain->stored);
  return {};
}

/// Reads the config at `model.config_path` into the model, and orders the tensors by it.
Result<> apply_config(ModelSpec stored, Model& model) {
  auto config = RESHARD_TRY(read_config(model.config_path));
  const std::string beside = config_beside(model);
  if (config.quantization.empty() && !beside.empty())
    config.quantization = name(QuantMethod::modelopt);
  if (!config.quantization.empty()) RESHARD_TRY(take_scales(config, stored, model));
  const std::vector<CanonicalTensor> scales = take_activation_scales(stored);
  config.router_expert_bias |=
      std::any_of(stored.tensors().begin(), stored.tensors().end(),
                  [](const CanonicalTensor& t) { return t.name.ends_with(kRouterBias); });
  detect_prefixes(stored, config);
  forget_missing_mtp(stored, config);
  RESHARD_TRY(take_copies(model, config, stored));
  const ModelSpec wanted = RESHARD_TRY(canonical_tensors(config));
  leave_out_strays(wanted, stored, model);
  if (auto same = check_against(stored, wanted); !same) {
    if (same.error().code == Code::corrupt) model.misshapen = same.error().message;
    return tl::unexpected(std::move(same).error().in(model.name));
  }
  ModelSpec ordered = in_order_of(wanted, stored);
  for (const CanonicalTensor& t : scales)
    RESHARD_TRY(ordered.add(t.name, t.shape, t.dtype, t.merged));
  model.tensors = std::make_shared<ModelSpec>(std::move(ordered));
  model.config = std::move(config);
  return {};
}

/// The same for a checkpoint of Megatron's dist_checkpointing.
Result<> apply_megatron(Model& model) {
  auto config = RESHARD_TRY(read_config(model.config_path));
  const auto has = [&](const auto& matches) {
    return std::ranges::any_of(model.weights->pieces().tensors,
                               [&](const TensorSpec& t) { return matches(t.name); });
  };
  config.router_expert_bias |=
      has([](const std::string& name) { return name.ends_with(".router.expert_bias"); });
  if (!has([](const std::string& name) { return name.starts_with("mtp."); })) {
    config.num_mtp = 0;
    config.mtp_block.clear();
  }
  torch_dist::MegatronCheckpoint found =
      RESHARD_TRY(torch_dist::megatron_checkpoint(*model.weights, config));
  model.tensors = std::move(found.model);
  model.pieces_layout = std::move(found.layout);
  model.left_out = std::move(found.left_out);
  model.config = std::move(config);
  return {};
}

/// False for a single file of a checkpoint, to which the config beside it need not apply.
bool is_whole(const std::string& path) {
  std::error_code ignored;
  const auto name = fs::path(path).filename().string();
  return fs::is_directory(path, ignored) || name == kHfFile || !name.ends_with(".safetensors");
}

Result<Model> config_model(const std::string& text, const std::string& path,
                           const ModelOptions& options) {
  Model model;
  model.name = text;
  model.ignore = options.ignore;
  model.config_path = path;
  model.config = RESHARD_TRY(read_config(path));
  if (options.layers) {
    const auto text_of_file = RESHARD_TRY(read_text_file(path, kMaxModelConfigBytes));
    const auto trimmed = RESHARD_TRY(config_with_layers(text_of_file, *options.layers, path));
    model.config = RESHARD_TRY(parse_config(trimmed, path));
  }
  model.tensors = std::make_shared<ModelSpec>(RESHARD_TRY(canonical_tensors(*model.config)));
  return model;
}

/// What the names of a model in a trainer's state begin with ("model.", "app.model."): with its
/// config, the text before most of the config's names; else nothing.
std::string prefix_of(const Checkpoint& weights) {
  const auto path = weights.config_path();
  const auto config = path ? read_config(*path) : fail(Code::not_found, "");
  const auto wanted = config ? canonical_tensors(*config) : fail(Code::not_found, "");
  if (!wanted || wanted->size() == 0) return "";
  std::set<std::string> names, prefixes;
  for (const TensorSpec& t : weights.pieces().tensors) names.insert(t.name);
  const std::string& first = wanted->tensors().front().name;
  for (const std::string& name : names)
    if (name.ends_with("." + first)) prefixes.insert(name.substr(0, name.size() - first.size()));
  std::string best;
  const auto matches = [&](const std::string& prefix) {
    return std::ranges::count_if(wanted->tensors(), [&](const CanonicalTensor& t) {
      return names.contains(prefix + t.name);
    });
  };
  auto most = matches("");
  for (const std::string& prefix : prefixes)
    if (const auto n = matches(prefix); n > most) std::tie(best, most) = std::pair(prefix, n);
  return best;
}

/// Reports what the checkpoint holds besides tensors of the model.
void leave_out_others(Model& model) {
  for (const CheckpointEntry& entry : model.weights->pieces().others)
    model.left_out.push_back(entry.name);
}

tl::unexpected<Error> unknown_model(const std::string& text) {
  return fail(
      Code::not_found,
      fmt::format(
          "model '{}': no such file or folder, and no example of that name; examples are {}", text,
          fmt::join(example_names(), ", ")));
}

}  // namespace

std::set<std::string> matching_names(const ModelSpec& tensors,
                                     const std::set<std::string>& patterns) {
  std::set<std::string> names;
  for (const CanonicalTensor& t : tensors.tensors())
    if (matches_any(patterns, t.name)) names.insert(t.name);
  return names;
}

Result<> check_ignored(const Model& model, const Model* other) {
  for (const std::string& pattern : model.ignore) {
    if (has_name_like(model, pattern) || (other != nullptr && has_name_like(*other, pattern)))
      continue;
    const std::string both = other == nullptr ? "" : " or " + other->name;
    return fail(Code::not_found, fmt::format("pattern '{}' to ignore matches no tensor of {}{}",
                                             pattern, model.name, both));
  }
  return {};
}

Result<Model> open_checkpoint(const std::string& path, const ModelOptions& options) {
  if (options.layers)
    return fail(Code::invalid_argument,
                fmt::format("{}: is a checkpoint; the number of layers can be chosen for a "
                            "config.json only",
                            path));
  Model model;
  model.name = path;
  model.weights = RESHARD_TRY(Checkpoint::open(path));
  if (model.weights->kind() == Checkpoint::Kind::dcp) {
    model.weights->keep_prefix(options.prefix ? *options.prefix : prefix_of(*model.weights));
  } else if (options.prefix && !options.prefix->empty()) {
    return fail(Code::invalid_argument,
                fmt::format("{}: a prefix can be taken from the names of a checkpoint of "
                            "torch.distributed.checkpoint only",
                            path));
  }
  const Checkpoint& checkpoint = *model.weights;
  const auto index_path = (fs::path(checkpoint.folder()) / kRankIndexFile).string();
  ModelSpec stored = checkpoint.kind() == Checkpoint::Kind::ranks
                         ? RESHARD_TRY(read_rank_index_tensors(index_path))
                         : RESHARD_TRY(stored_tensors(checkpoint));
  if (checkpoint.kind() == Checkpoint::Kind::ranks)
    RESHARD_TRY(take_scales_of_ranks(stored, model));
  if (stored.size() == 0) return fail(Code::corrupt, fmt::format("{}: holds no tensors", path));
  model.ignore = options.ignore;
  model.tensors = std::make_shared<ModelSpec>(stored);
  if (is_whole(path)) model.config_path = checkpoint.config_path().value_or("");
  if (model.config_path.empty()) {
    model.no_config = is_whole(path) ? fmt::format("{} has no config.json beside it", path)
                                     : fmt::format("{} is one file of a checkpoint", path);
    leave_out_ignored(model);
    leave_out_others(model);
    return model;
  }
  auto applied = torch_dist::is_megatron(checkpoint.pieces())
                     ? apply_megatron(model)
                     : apply_config(std::move(stored), model);
  RESHARD_TRY(checkpoint.unchanged());
  if (applied) {
    leave_out_others(model);
    return model;
  }
  // Families that need no config serve other architectures.
  if (options.exact && applied.error().code != Code::unsupported)
    return tl::unexpected(std::move(applied).error());
  model.no_config = applied.error().message;
  if (checkpoint.kind() == Checkpoint::Kind::hf) {
    model.stored.reset();
    model.stored_method.reset();
  }
  leave_out_ignored(model);
  leave_out_others(model);
  return model;
}

Result<Model> open_model(const std::string& text, const ModelOptions& options) {
  std::error_code ignored;
  const fs::path path(text);
  if (fs::is_directory(path, ignored)) {
    const fs::path config = path / kConfigFile;
    if (!Checkpoint::is_in(text) && is_there(config))
      return config_model(text, config.string(), options);
    return open_checkpoint(text, options);
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
