// SPDX-License-Identifier: Apache-2.0
// The inner loops behind convert.h: 16-bit floats to and from 32-bit floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reshard/transform/convert_arithmetic.h"

namespace reshard::kernels {

/// Elements that are converted at a time if a value map applies; their floats stay in the L1 cache.
inline constexpr int kConvertBlock = 512;

/// Any n; no alignment is required. `stream` permits stores past the caches.
struct ConvertKernels {
  using Function = void (*)(const std::byte* src, std::byte* dst, std::ptrdiff_t n, bool stream);
  Function from_bf16, from_f16;  ///< to floats.
  Function to_bf16, to_f16;      ///< from floats.
};

/// Converts element by element.
template <auto One, class From, class To>
void convert_each(const std::byte* src, std::byte* dst, std::ptrdiff_t n) {
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    From from;
    std::memcpy(&from, src + i * static_cast<std::ptrdiff_t>(sizeof from), sizeof from);
    const To to = One(from);
    std::memcpy(dst + i * static_cast<std::ptrdiff_t>(sizeof to), &to, sizeof to);
  }
}

const ConvertKernels& portable_convert_kernels();
/// @pre the processor has AVX2 and F16C
const ConvertKernels& avx2_convert_kernels();
bool has_avx2_convert_kernels();
/// The portable ones on a processor that is not arm64.
const ConvertKernels& neon_convert_kernels();

}  // namespace reshard::kernels
