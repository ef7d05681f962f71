// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/adapters/merge_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "reshard/base/closest_name.h"
#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/files/json.h"
#include "reshard/io/identify/adapters/peft.h"
#include "reshard/model/names.h"
#include "reshard/model/naming/parameter_names.h"

namespace reshard::identify {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxPeftConfigBytes = std::size_t{1} << 20;

bool is_mergeable(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

std::string described(const StoredTensor& t) {
  return fmt::format("'{}' {} {}", t.name, name(t.dtype), to_string(t.shape));
}

/// The parts of an adapter that belong to one tensor of the model.
struct TensorParts {
  const StoredTensor* a = nullptr;
  const StoredTensor* b = nullptr;
  bool embedding = false;
  const StoredTensor* whole = nullptr;

  const StoredTensor& any() const { return *(a != nullptr ? a : b != nullptr ? b : whole); }
};

/// An open adapter, with its parts by the names of its module's tensors.
struct Adapter {
  std::string folder;
  PeftConfig config = {};
  const SafetensorsFile* file = nullptr;
  std::map<std::string, TensorParts> parts = {};

  tl::unexpected<Error> fails(Code code, const std::string& what) const {
    return fail(code, fmt::format("adapter '{}': {}", folder, what));
  }
  StoredValues values(const StoredTensor& t) const { return {file->data(t).data(), t.dtype}; }
};

Result<> take_part(Adapter& adapter, const StoredTensor& t) {
  const ParameterName found = parameter_name(t.name);
  if (found.role == ParameterRole::other || found.role == ParameterRole::original)
    return adapter.fails(Code::unsupported,
                         fmt::format("'{}' is more than A and B; merge it with PEFT", t.name));
  if (!is_mergeable(t.dtype))
    return adapter.fails(Code::unsupported,
                         fmt::format("{}: parts of an adapter are F32, BF16 or F16", described(t)));
  TensorParts& parts = adapter.parts[found.tensor];
  const bool is_a = found.role == ParameterRole::a || found.role == ParameterRole::embedding_a;
  const StoredTensor*& part = found.role == ParameterRole::whole ? parts.whole
                              : is_a                             ? parts.a
                                                                 : parts.b;
  if (part != nullptr)
    return adapter.fails(
        Code::invalid_argument,
        fmt::format("'{}' and '{}' are the same part of '{}'", part->name, t.name, found.tensor));
  part = &t;
  parts.embedding |=
      found.role == ParameterRole::embedding_a || found.role == ParameterRole::embedding_b;
  return {};
}

Result<> check_pairs(const Adapter& adapter) {
  for (const auto& [tensor, parts] : adapter.parts)
    if ((parts.a == nullptr) != (parts.b == nullptr))
      return adapter.fails(Code::invalid_argument,
                           fmt::format("'{}' is there without the other factor of '{}'",
                                       (parts.a != nullptr ? parts.a : parts.b)->name, tensor));
  return {};
}

Result<Adapter> read_adapter(const std::string& folder, const SafetensorsFile& file) {
  const std::string path = (fs::path(folder) / kAdapterConfigFile).string();
  const auto text = RESHARD_TRY(read_text_file(path, kMaxPeftConfigBytes));
  Adapter adapter{.folder = folder, .file = &file};
  adapter.config = RESHARD_TRY(parse_peft_config(text, path));
  for (const StoredTensor& t : file.tensors()) RESHARD_TRY(take_part(adapter, t));
  if (adapter.parts.empty()) return adapter.fails(Code::invalid_argument, "has no tensors");
  RESHARD_TRY(check_pairs(adapter));
  return adapter;
}

/// The name of the model's tensor, in one of the ways that names of modules differ from it.
enum class Prefix { same, added, removed };
std::string with(Prefix prefix, const std::string& tensor) {
  constexpr std::string_view kModel = "model.";
  if (prefix == Prefix::added) return std::string(kModel) + tensor;
  if (prefix == Prefix::removed && tensor.starts_with(kModel)) return tensor.substr(kModel.size());
  return tensor;
}

/// The same way for all tensors of an adapter.
Result<Prefix> prefix_of(const Adapter& adapter, const ModelSpec& tensors) {
  for (const Prefix prefix : {Prefix::same, Prefix::added, Prefix::removed}) {
    bool all = true;
    for (const auto& [tensor, parts] : adapter.parts)
      all &= tensors.find(with(prefix, tensor)).has_value();
    if (all) return prefix;
  }
  std::vector<std::string_view> names;
  for (const CanonicalTensor& t : tensors.tensors()) names.emplace_back(t.name);
  for (const auto& [tensor, parts] : adapter.parts)
    if (!tensors.find(tensor))
      return adapter.fails(Code::invalid_argument,
                           fmt::format("'{}' belongs to '{}', which the model lacks{}",
                                       parts.any().name, tensor, did_you_mean(tensor, names)));
  return adapter.fails(Code::invalid_argument, "its tensors are not the model's");
}

/// Merges one adapter.
class Merger {
 public:
  Merger(const Adapter& adapter, Model& model) : adapter_(adapter), model_(model) {}

  Result<> merge() {
    const Prefix prefix = RESHARD_TRY(prefix_of(adapter_, *model_.tensors));
    for (const auto& [tensor, parts] : adapter_.parts)
      RESHARD_TRY(merge(with(prefix, tensor), parts));
    return {};
  }

 private:
  tl::unexpected<Error> unsupported(const std::string& tensor, const std::string& why) const {
    return adapter_.fails(Code::unsupported, fmt::format("'{}' {}", tensor, why));
  }

  Result<> merge(const std::string& tensor, const TensorParts& parts) {
    const CanonicalTensor& t = (*model_.tensors)[*model_.tensors->find(tensor)];
    if (!is_mergeable(t.dtype))
      return unsupported(
          tensor,
          fmt::format("is {}, and an adapter is merged into F32, BF16 or F16", name(t.dtype)));
    if (is_head_too(tensor, parts))
      return unsupported(tensor,
                         "is the weight of the LM head, too, which the adapter does not change: "
                         "store the head as a tensor of its own, without tie_word_embeddings");
    auto found = model_.storage->merged.find(tensor);
    if (found == model_.storage->merged.end())
      found = model_.storage->merged.emplace(tensor, RESHARD_TRY(base_of(t))).first;
    else if (parts.whole != nullptr || found->second.is_replaced)
      return adapter_.fails(
          Code::invalid_argument,
          fmt::format("'{}' is replaced by one adapter and part of another", tensor));
    MergedWeight& weight = found->second;
    if (parts.whole != nullptr) RESHARD_TRY(replace(t, *parts.whole, weight));
    if (parts.a == nullptr) return {};
    weight.values.changes.push_back(RESHARD_TRY(change_of(t, parts)));
    return {};
  }

  /// True for embeddings that are tied to the head: a module adds the adapter's change to what it
  /// looks up, and computes logits without it. Without a config, a head that is not stored is tied.
  bool is_head_too(const std::string& tensor, const TensorParts& parts) const {
    if (model_.config)
      return model_.config->tie_word_embeddings && tensor == HfNames(*model_.config).embedding();
    const auto& all = model_.tensors->tensors();
    return parts.embedding && std::ranges::none_of(all, [](const CanonicalTensor& t) {
             return t.name.ends_with("lm_head.weight");
           });
  }

  /// The weight as it is without adapters.
  Result<MergedWeight> base_of(const CanonicalTensor& t) const {
    if (model_.stored && model_.stored->tensors.contains(t.name))
      return unsupported(t.name, fmt::format("is stored as {}: convert the checkpoint to plain "
                                             "weights first (--to hf)",
                                             to_string(*model_.stored)));
    for (const auto& [copy, original] : copies_)
      if (original == t.name)
        return unsupported(t.name, fmt::format("is stored a second time, as '{}'", copy));
    const bool matrix = t.shape.size() == 2;
    MergedTensor values;
    values.rows = matrix ? t.shape[0] : 1;
    values.cols = matrix ? t.shape[1] : volume(t.shape);
    if (const auto codes = model_.storage->decoded.find(t.name);
        codes != model_.storage->decoded.end()) {
      values.base = codes->second;
      return MergedWeight{std::move(values)};
    }
    const CheckpointTensor* const stored = find_tensor(model_.weights->tensors(), t.name);
    if (stored == nullptr || stored->shape != t.shape || stored->dtype != t.dtype)
      return unsupported(t.name, "is not a tensor of its own in the checkpoint's files");
    values.base = StoredValues{model_.weights->data(*stored).data(), stored->dtype};
    return MergedWeight{std::move(values)};
  }

  Result<> replace(const CanonicalTensor& t, const StoredTensor& whole,
                   MergedWeight& weight) const {
    if (whole.shape != t.shape)
      return adapter_.fails(Code::invalid_argument,
                            fmt::format("{} replaces '{}', which is {}", described(whole), t.name,
                                        to_string(t.shape)));
    weight.values.base = adapter_.values(whole);
    weight.is_replaced = true;
    return {};
  }

  Result<LowRankChange> change_of(const CanonicalTensor& t, const TensorParts& parts) const {
    const StoredTensor &a = *parts.a, &b = *parts.b;
    const bool transposed = parts.embedding || adapter_.config.fan_in_fan_out;
    const bool matrices = t.shape.size() == 2 && a.shape.size() == 2 && b.shape.size() == 2;
    const int out = transposed ? 1 : 0;
    if (!matrices || a.shape[0] < 1 || b.shape[1] != a.shape[0] || b.shape[0] != t.shape[out] ||
        a.shape[1] != t.shape[1 - out])
      return adapter_.fails(
          Code::invalid_argument,
          fmt::format("{} and {} do not give '{}' its shape, {}{}", described(a), described(b),
                      t.name, to_string(t.shape), transposed ? " (transposed)" : ""));
    const std::string module = parameter_name(a.name).tensor;
    const auto scale = static_cast<float>(adapter_.config.scale(
        std::string_view(module).substr(0, module.size() - std::string_view(".weight").size()),
        a.shape[0]));
    if (!std::isfinite(scale))
      return adapter_.fails(Code::invalid_argument,
                            fmt::format("the scale of '{}' is beyond F32", t.name));
    return LowRankChange{adapter_.values(a), adapter_.values(b), a.shape[0], scale, transposed};
  }

  /// (second name, first name) of tensors that layouts hold twice.
  static std::vector<std::pair<std::string, std::string>> copies_of(const Model& model) {
    if (!model.config || !model.config->mtp_copies) return {};
    return HfNames(*model.config).aliases();
  }

  const Adapter& adapter_;
  Model& model_;
  std::vector<std::pair<std::string, std::string>> copies_ = copies_of(model_);
};

}  // namespace

Result<> merge_adapters(const std::vector<std::string>& folders, Model& model) {
  if (folders.empty()) return {};
  if (model.weights->kind() != Checkpoint::Kind::hf)
    return fail(Code::unsupported,
                fmt::format("{}: adapters are merged into checkpoints in Hugging Face's layout; "
                            "convert it first (--to hf)",
                            model.name));
  if (!model.opaque.empty())
    return fail(Code::unsupported,
                fmt::format("{}: no adapter can be merged: {}", model.name, model.opaque));
  model.storage->adapters.reserve(folders.size());  // Parts borrow from the files.
  for (const std::string& folder : folders) {
    const auto path = (fs::path(folder) / kAdapterFile).string();
    model.storage->adapters.push_back(RESHARD_TRY(SafetensorsFile::open(path)));
    const Adapter adapter = RESHARD_TRY(read_adapter(folder, model.storage->adapters.back()));
    RESHARD_TRY(Merger(adapter, model).merge());
    RESHARD_TRY(model.storage->adapters.back().mapping().unchanged());
  }
  return {};
}

}  // namespace reshard::identify
