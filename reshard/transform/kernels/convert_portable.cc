// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "reshard/transform/kernels/convert_kernels.h"

namespace reshard::kernels {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000U;

template <auto One, class From, class To>
void each(const std::byte* src, std::byte* dst, std::ptrdiff_t n, bool) {
  convert_each<One, From, To>(src, dst, n);
}

/// The float of a subnormal half: mantissa * 2^-24, which is exact.
std::uint32_t from_subnormal(std::uint32_t mantissa) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F);
}

/// A half below 2^-14: as many units of 2^-24 as are nearest, ties to even.
std::uint32_t to_subnormal(std::uint32_t magnitude) {
  // Adding 1/2 puts the unit of 2^-24 at the last mantissa bit; the addition rounds.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  return std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F);
}

}  // namespace

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > kInfinity) {
    const std::uint32_t top = bits >> 16;
    return static_cast<std::uint16_t>((top & 0x7fU) != 0 ? top : top | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fU, mantissa = bits & 0x3ffU;
  std::uint32_t out = 0;
  if (exponent == 0) {
    out = from_subnormal(mantissa);
  } else if (exponent == 31) {
    out = kInfinity | mantissa << 13 | (mantissa != 0 ? 0x400000U : 0U);
  } else {
    out = (exponent + 112) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | out);
}

std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;
  std::uint32_t out = 0;
  if (magnitude > kInfinity) {
    out = 0x7e00U | (magnitude >> 13 & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // 65520: what rounds to infinity
    out = 0x7c00U;
  } else if (magnitude < 0x38800000U) {  // 2^-14
    out = to_subnormal(magnitude);
  } else {
    out = (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | out);
}

const ConvertKernels& portable_convert_kernels() {
  static constexpr ConvertKernels kKernels = {
      each<kernels::from_bf16, std::uint16_t, float>, each<kernels::from_f16, std::uint16_t, float>,
      each<kernels::to_bf16, float, std::uint16_t>, each<kernels::to_f16, float, std::uint16_t>};
  return kKernels;
}

}  // namespace reshard::kernels
