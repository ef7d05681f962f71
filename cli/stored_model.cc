// SPDX-License-Identifier: Apache-2.0
#include "cli/stored_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace reshard::cli {
namespace {

constexpr std::string_view kFactor = "_scale_2", kWeight = ".weight";

bool is_quantised(const CanonicalTensor& t, const QuantFormat& format) {
  return t.dtype == format.data && t.shape.size() >= 2;
}

Dims blocks_of(Dims shape, Index rows, Index cols) {
  const auto up = [](Index n, Index block) {
    return block == 0 ? Index{1} : (n + block - 1) / block;
  };
  const int n = shape.size();
  shape[n - 2] = up(shape[n - 2], rows);
  shape[n - 1] = up(shape[n - 1], cols);
  return shape;
}

Result<> check_beside(const ModelSpec& stored, const CanonicalTensor& t, const std::string& name,
                      DType dtype, const Dims& shape) {
  const auto id = stored.find(name);
  if (!id)
    return fail(Code::corrupt, fmt::format("'{}' is stored as {} without its scales '{}'", t.name,
                                           reshard::name(t.dtype), name));
  const CanonicalTensor& s = stored[*id];
  // One number is written with any number of dimensions.
  const bool fits = s.shape == shape || (volume(shape) == 1 && volume(s.shape) == 1);
  if (fits && s.dtype == dtype) return {};
  return fail(Code::corrupt,
              fmt::format("'{}' is {} {}; scales of '{}' are {} {}", name, reshard::name(s.dtype),
                          to_string(s.shape), t.name, reshard::name(dtype), to_string(shape)));
}

}  // namespace

Result<PlainTensors> plain_tensors(const ModelSpec& stored, const QuantFormat& format,
                                   DType values) {
  PlainTensors out;
  out.stored.format = format;
  out.stored.grid = BlockGrid::tensor;
  std::set<std::string> beside;
  for (const CanonicalTensor& t : stored.tensors()) {
    if (!is_quantised(t, format)) continue;
    const std::string scales = t.name + scale_suffix(format);
    RESHARD_TRY(check_beside(stored, t, scales, format.scale,
                             blocks_of(t.shape, format.block_rows, format.block_cols)));
    beside.insert(scales);
    if (format.tensor_factor) {
      const std::string factor = t.name + std::string(kFactor);
      RESHARD_TRY(check_beside(stored, t, factor, DType::f32, blocks_of(t.shape, 0, 0)));
      beside.insert(factor);
    }
    out.stored.tensors.insert(t.name);
  }
  for (const CanonicalTensor& t : stored.tensors()) {
    if (beside.contains(t.name)) continue;
    const DType dtype = is_quantised(t, format) ? values : t.dtype;
    RESHARD_TRY(out.tensors.add(t.name, t.shape, dtype, t.merged));
  }
  return out;
}

bool is_cache_scale(const CanonicalTensor& tensor) {
  constexpr std::array<std::string_view, 3> kScales = {".k_scale", ".v_scale", ".q_scale"};
  return volume(tensor.shape) == 1 && tensor.name.find(".self_attn.") != std::string::npos &&
         std::any_of(kScales.begin(), kScales.end(),
                     [&](std::string_view end) { return tensor.name.ends_with(end); });
}

std::vector<std::string> plain_modules(const ModelSpec& values, const QuantChoice& choice) {
  std::vector<std::string> names;
  for (const CanonicalTensor& t : values.tensors())
    if (t.shape.size() == 2 && t.name.ends_with(kWeight) && !choice.tensors.contains(t.name) &&
        t.name.find("embed") == std::string::npos)
      names.push_back(t.name.substr(0, t.name.size() - kWeight.size()));
  return names;
}

}  // namespace reshard::cli
