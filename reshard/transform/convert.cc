// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "reshard/base/check.h"
#include "reshard/transform/convert_kernels.h"
#include "reshard/transform/simd.h"

namespace reshard {
namespace {

using detail::ConvertKernels;
using detail::kConvertBlock;

const ConvertKernels& kernels() {
  static const bool fast = detail::has_avx2_convert_kernels();
  return fast && simd_level() >= SimdLevel::avx2 ? detail::avx2_convert_kernels()
                                                 : detail::portable_convert_kernels();
}

/// Some elements on their way, as halves and as floats.
struct Block {
  std::array<std::uint16_t, kConvertBlock> halves;
  std::array<float, kConvertBlock> floats;
};

/// @pre is_convertible(dtype)
Index width(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

void load(const ConvertKernels& k, DType dtype, const std::byte* src, Block& block, int n) {
  const auto bytes = static_cast<std::size_t>(n * width(dtype));
  if (dtype == DType::f32) {
    std::memcpy(block.floats.data(), src, bytes);
    return;
  }
  std::memcpy(block.halves.data(), src, bytes);
  (dtype == DType::bf16 ? k.from_bf16 : k.from_f16)(block.halves.data(), block.floats.data(), n);
}

void store(const ConvertKernels& k, DType dtype, Block& block, std::byte* dst, int n) {
  const auto bytes = static_cast<std::size_t>(n * width(dtype));
  if (dtype == DType::f32) {
    std::memcpy(dst, block.floats.data(), bytes);
    return;
  }
  (dtype == DType::bf16 ? k.to_bf16 : k.to_f16)(block.floats.data(), block.halves.data(), n);
  std::memcpy(dst, block.halves.data(), bytes);
}

template <class F>
void each(Block& block, int n, F f) {
  for (float& value : std::span(block.floats).first(static_cast<std::size_t>(n))) value = f(value);
}

/// Stored values to canonical ones.
void undo(ValueMap map, Block& block, int n) {
  switch (map) {
    case ValueMap::identity: return;
    case ValueMap::negated_exp:
      return each(block, n, [](float v) { return static_cast<float>(std::log(-double{v})); });
    case ValueMap::plus_one: return each(block, n, [](float v) { return v - 1.0F; });
    case ValueMap::minus_one: return each(block, n, [](float v) { return v + 1.0F; });
  }
}

void apply(ValueMap map, Block& block, int n) {
  switch (map) {
    case ValueMap::identity: return;
    case ValueMap::negated_exp:
      return each(block, n, [](float v) { return static_cast<float>(-std::exp(double{v})); });
    case ValueMap::plus_one: return each(block, n, [](float v) { return v + 1.0F; });
    case ValueMap::minus_one: return each(block, n, [](float v) { return v - 1.0F; });
  }
}

}  // namespace

void convert_values(const Conversion& c, const std::byte* src, std::byte* dst, Index n) {
  RESHARD_CHECK(is_convertible(c.from.dtype) && is_convertible(c.to.dtype));
  const ConvertKernels& k = kernels();
  const Index from = width(c.from.dtype), to = width(c.to.dtype);
  const bool same_map = c.from.map == c.to.map;
  Block block;
  for (Index at = 0; at < n; at += kConvertBlock) {
    const int part = static_cast<int>(std::min<Index>(kConvertBlock, n - at));
    load(k, c.from.dtype, src + at * from, block, part);
    if (!same_map) {
      undo(c.from.map, block, part);
      apply(c.to.map, block, part);
    }
    store(k, c.to.dtype, block, dst + at * to, part);
  }
}

void run_conversion(const StridedCopy& copy, const Conversion& conversion, const std::byte* src,
                    std::byte* dst) {
  const Index to = width(conversion.to.dtype);
  for_each_run(copy, [&](Index s, Index d, Index bytes) {
    convert_values(conversion, src + s, dst + d, bytes / to);
  });
}

}  // namespace reshard
