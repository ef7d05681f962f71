// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "reshard/base/check.h"
#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/simd.h"

namespace reshard {
namespace {

using kernels::ConvertKernels;
using kernels::kConvertBlock;

const ConvertKernels& convert_kernels() {
  static const bool kHasAvx2 = kernels::has_avx2_convert_kernels();
  const SimdLevel level = simd_level();
  if (level == SimdLevel::neon) return kernels::neon_convert_kernels();
  return kHasAvx2 && level >= SimdLevel::avx2 ? kernels::avx2_convert_kernels()
                                              : kernels::portable_convert_kernels();
}

/// Elements in transit, as floats.
using Block = std::array<float, kConvertBlock>;

/// @pre is_convertible(dtype)
Index width(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

void load(const ConvertKernels& k, DType dtype, const std::byte* src, std::byte* floats, Index n,
          bool stream = false) {
  if (dtype == DType::f32) {
    std::memcpy(floats, src, static_cast<std::size_t>(n * 4));
  } else {
    (dtype == DType::bf16 ? k.from_bf16 : k.from_f16)(src, floats, n, stream);
  }
}

void store(const ConvertKernels& k, DType dtype, const std::byte* floats, std::byte* dst, Index n,
           bool stream = false) {
  if (dtype == DType::f32) {
    std::memcpy(dst, floats, static_cast<std::size_t>(n * 4));
  } else {
    (dtype == DType::bf16 ? k.to_bf16 : k.to_f16)(floats, dst, n, stream);
  }
}

/// Turns values of one form into values of the other.
void change_map(ValueMap from, ValueMap to, Block& block, Index n) {
  for (float& value : std::span(block).first(static_cast<std::size_t>(n)))
    value = stored_value(to, canonical_value(from, value));
}

}  // namespace

void convert_values(const Conversion& c, const std::byte* src, std::byte* dst, Index n,
                    CopyHint hint) {
  RESHARD_CHECK(is_convertible(c.from.dtype) && is_convertible(c.to.dtype));
  if (n == 0) return;
  const ConvertKernels& k = convert_kernels();
  const bool stream = hint == CopyHint::streaming;
  if (c.from.map == c.to.map && c.to.dtype == DType::f32)
    return load(k, c.from.dtype, src, dst, n, stream);
  if (c.from.map == c.to.map && c.from.dtype == DType::f32)
    return store(k, c.to.dtype, src, dst, n, stream);
  Block block;
  auto* const floats = reinterpret_cast<std::byte*>(block.data());
  for (Index at = 0; at < n; at += kConvertBlock) {
    const Index part = std::min<Index>(kConvertBlock, n - at);
    load(k, c.from.dtype, src + at * width(c.from.dtype), floats, part);
    if (c.from.map != c.to.map) change_map(c.from.map, c.to.map, block, part);
    store(k, c.to.dtype, floats, dst + at * width(c.to.dtype), part);
  }
}

void run_conversion(const StridedCopy& copy, const Conversion& conversion, const std::byte* src,
                    std::byte* dst, CopyHint hint) {
  const Index to = width(conversion.to.dtype);
  // Streaming stores of short runs would leave many cache lines partly written.
  constexpr Index kLeastStreamed = 1024;
  if (copy.run_bytes < kLeastStreamed) hint = CopyHint::cached;
  for_each_run(copy, [&](Index s, Index d, Index bytes) {
    convert_values(conversion, src + s, dst + d, bytes / to, hint);
  });
}

}  // namespace reshard
