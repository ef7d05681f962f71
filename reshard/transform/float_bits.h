// SPDX-License-Identifier: Apache-2.0
// Floats as their bits, for arithmetic that GPU sources include, too.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define RESHARD_HOST_DEVICE __host__ __device__
#else
#define RESHARD_HOST_DEVICE
#endif

namespace reshard {

/// Bit patterns of floats.
inline constexpr std::uint32_t kFloatInfinity = 0x7f800000U, kFloatNan = 0x7fc00000U,
                               kFloatMagnitude = 0x7fffffffU, kFloatOne = 0x3f800000U,
                               kFloatLargest = 0x7f7fffffU;

RESHARD_HOST_DEVICE constexpr std::uint32_t float_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
RESHARD_HOST_DEVICE constexpr float bits_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
RESHARD_HOST_DEVICE constexpr bool is_nan_bits(std::uint32_t bits) {
  return (bits & kFloatMagnitude) > kFloatInfinity;
}

}  // namespace reshard
