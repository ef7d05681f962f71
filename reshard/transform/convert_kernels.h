// SPDX-License-Identifier: Apache-2.0
// Floats of 16 bits to and from floats of 32, block by block: the inner loops behind convert.h.
#pragma once

#include <cstdint>

namespace reshard::detail {

/// Elements that are converted at once; their floats stay in the first-level cache.
inline constexpr int kConvertBlock = 512;

/// Any n from 0 to kConvertBlock.
struct ConvertKernels {
  void (*from_bf16)(const std::uint16_t* src, float* dst, int n);
  void (*from_f16)(const std::uint16_t* src, float* dst, int n);
  void (*to_bf16)(const float* src, std::uint16_t* dst, int n);
  void (*to_f16)(const float* src, std::uint16_t* dst, int n);
};

/// One element, in plain C++; all kernels give these bits.
float from_bf16(std::uint16_t bits);
float from_f16(std::uint16_t bits);
std::uint16_t to_bf16(float value);
std::uint16_t to_f16(float value);

const ConvertKernels& portable_convert_kernels();
/// @pre the processor has AVX2 and F16C
const ConvertKernels& avx2_convert_kernels();
bool has_avx2_convert_kernels();

}  // namespace reshard::detail
