// SPDX-License-Identifier: Apache-2.0
// The conversion of one value. All kernels of convert.h agree with it bit for bit. Plain functions
// of integers and IEEE floats, so that GPU sources can include them.
#pragma once

#include <cmath>

#include "reshard/base/value_map.h"
#include "reshard/transform/float_bits.h"

namespace reshard {

RESHARD_HOST_DEVICE constexpr float from_bf16(std::uint16_t bits) {
  return bits_float(static_cast<std::uint32_t>(bits) << 16);
}

RESHARD_HOST_DEVICE constexpr std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if (is_nan_bits(bits)) {
    const std::uint32_t top = bits >> 16;
    return static_cast<std::uint16_t>((top & 0x7fU) != 0 ? top : top | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

RESHARD_HOST_DEVICE constexpr float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fU, mantissa = bits & 0x3ffU;
  std::uint32_t out = 0;
  if (exponent == 0) {
    // Subnormal: mantissa * 2^-24, which is exact.
    out = float_bits(static_cast<float>(mantissa) * 0x1p-24F);
  } else if (exponent == 31) {
    out = kFloatInfinity | mantissa << 13 | (mantissa != 0 ? 0x400000U : 0U);
  } else {
    out = (exponent + 112) << 23 | mantissa << 13;
  }
  return bits_float(sign | out);
}

RESHARD_HOST_DEVICE constexpr std::uint16_t to_f16(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & kFloatMagnitude;
  std::uint32_t out = 0;
  if (magnitude > kFloatInfinity) {
    out = 0x7e00U | (magnitude >> 13 & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // 65520: what rounds to infinity
    out = 0x7c00U;
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14: as many units of 2^-24 as are nearest, ties to even. Adding 1/2 puts that unit
    // at the last mantissa bit; the addition rounds.
    out = float_bits(bits_float(magnitude) + 0.5F) - float_bits(0.5F);
  } else {
    out = (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | out);
}

/// The NaN that arithmetic makes of a NaN: the same, quiet.
RESHARD_HOST_DEVICE constexpr float quiet_nan(float nan) {
  return bits_float(float_bits(nan) | 0x400000U);
}
/// That of the same, negated. A GPU's negation has another.
RESHARD_HOST_DEVICE constexpr float negated_nan(float nan) {
  return bits_float((float_bits(nan) ^ 0x80000000U) | 0x400000U);
}

/// The NaN of what has no result, such as infinity times 0: x86's, also on GPUs, whose own differs.
inline constexpr std::uint32_t kInvalidNan = 0xffc00000U;

/// The canonical value of a stored one.
RESHARD_HOST_DEVICE inline float canonical_value(ValueMap map, float value) {
  if (map == ValueMap::identity) return value;
  const bool nan = is_nan_bits(float_bits(value));
  if (map == ValueMap::negated_exp) {
    if (nan) return negated_nan(value);
    return value > 0 ? bits_float(kInvalidNan) : static_cast<float>(log(-double{value}));
  }
  if (nan) return quiet_nan(value);
  return map == ValueMap::plus_one ? value - 1.0F : value + 1.0F;
}

/// The stored value of a canonical one.
RESHARD_HOST_DEVICE inline float stored_value(ValueMap map, float value) {
  if (map == ValueMap::identity) return value;
  const bool nan = is_nan_bits(float_bits(value));
  if (map == ValueMap::negated_exp)
    return nan ? negated_nan(value) : static_cast<float>(-exp(double{value}));
  if (nan) return quiet_nan(value);
  return map == ValueMap::plus_one ? value + 1.0F : value - 1.0F;
}

/// A value after a conversion, before it is rounded to the dtype that it gets.
RESHARD_HOST_DEVICE inline float mapped_value(const Conversion& conversion, float value) {
  const ValueMap from = conversion.from.map, to = conversion.to.map;
  return from == to ? value : stored_value(to, canonical_value(from, value));
}

}  // namespace reshard
