// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/tensor_lists.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "reshard/io/checkpoint/model_storage.h"
#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/identify/trainer_state.h"
#include "reshard/model/name_pattern.h"

namespace reshard::identify {

bool is_stray_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEndings = {
      ".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

Result<ModelSpec> stored_tensors(const Checkpoint& checkpoint) {
  ModelSpec spec;
  for (const TensorSpec& t : checkpoint.whole_tensors()) {
    auto added = spec.add(t.name, t.shape, t.dtype);
    if (!added) return tl::unexpected(std::move(added).error().in(checkpoint.folder()));
  }
  return spec;
}

std::optional<std::array<std::int64_t, 2>> stored_sizes(const Checkpoint& checkpoint,
                                                        const CheckpointTensor& t) {
  if ((t.dtype != DType::i64 && t.dtype != DType::i32) || volume(t.shape) != 2) return std::nullopt;
  const auto bytes = checkpoint.data(t);
  std::array<std::int64_t, 2> sizes{};
  if (t.dtype == DType::i64) {
    std::memcpy(sizes.data(), bytes.data(), sizeof sizes);
  } else {
    std::array<std::int32_t, 2> narrow{};
    std::memcpy(narrow.data(), bytes.data(), sizeof narrow);
    sizes = {narrow[0], narrow[1]};
  }
  return sizes;
}

ModelSpec without(const ModelSpec& spec, const std::vector<std::string>& names) {
  const std::set<std::string_view> out(names.begin(), names.end());
  ModelSpec rest;
  for (const CanonicalTensor& t : spec.tensors())
    if (!out.contains(t.name))
      (void)rest.add(t.name, t.shape, t.dtype, t.merged);  // was valid in `spec`
  return rest;
}

bool matches_any(const std::set<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return match_pattern(pattern, name).has_value();
  });
}

namespace {

/// True for the bias of zeros that GPTQ's programs store beside every weight, also of classes that
/// have none.
bool is_empty_bias(const Model& model, std::string_view name) {
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias)) return false;
  const std::string module(name.substr(0, name.size() - kBias.size()));
  if (!model.storage->decoded.contains(module + ".weight")) return false;
  const auto bytes = model.weights->data(*find_tensor(model.weights->tensors(), name));
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

void leave_out_strays(const ModelSpec& config, ModelSpec& stored, Model& model) {
  std::vector<std::string> strays;
  for (const CanonicalTensor& t : stored.tensors())
    if (!config.find(t.name) && (is_stray_buffer(t.name) || matches_any(model.ignore, t.name) ||
                                 is_empty_bias(model, t.name)))
      strays.push_back(t.name);
  if (strays.empty()) return;
  stored = without(stored, strays);
  model.left_out = std::move(strays);
}

void leave_out_ignored(Model& model) {
  const auto names = matching_names(*model.tensors, model.ignore);
  if (names.empty()) return;
  model.left_out.assign(names.begin(), names.end());
  model.tensors = std::make_shared<ModelSpec>(without(*model.tensors, model.left_out));
}

ModelSpec in_order_of(const ModelSpec& config, const ModelSpec& checkpoint) {
  ModelSpec ordered;
  for (const CanonicalTensor& t : config.tensors())
    (void)ordered.add(t.name, t.shape, checkpoint[*checkpoint.find(t.name)].dtype, t.merged);
  return ordered;
}

void leave_out_others(Model& model) {
  for (const CheckpointEntry& entry : model.weights->pieces().others) {
    const bool weight = entry.kind == EntryKind::tensor || entry.kind == EntryKind::unread;
    if (weight && !is_trainer_state(entry.name)) model.left_out.push_back(entry.name);
  }
}

}  // namespace reshard::identify
