// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one element and one scale. All kernels of quantise.h agree with it bit for bit.
// Plain functions of integers and IEEE floats without a library, so that GPU sources can include
// them.
//
// Casts round to nearest even and saturate. No addition follows a product, so that no compiler can
// fuse float operations.
#pragma once

#include <cstdint>

#include "reshard/transform/float_bits.h"

namespace reshard {

/// The dtypes of data.
enum class CodeKind : std::uint8_t { e4m3, e2m1 };

/// Properties of a small float, in terms of float's bits.
struct SmallFloatTraits {
  int mantissa_bits;              ///< of a normal number.
  int bias;                       ///< of the exponent.
  std::uint32_t largest;          ///< bits of the largest number as a float.
  std::uint32_t largest_code;     ///< its code.
  std::uint32_t nan_code;         ///< of NaN.
  std::uint32_t sign_code;        ///< the sign bit.
  std::uint32_t largest_top;      ///< mantissa of the largest number, in float's bits.
  std::int32_t largest_exponent;  ///< floor(log2(largest)).
  float largest_value;
};

/// E4M3: NaN is 0x7f with its sign. E2M1 has no NaN: it becomes 6, as in hardware conversions.
RESHARD_HOST_DEVICE constexpr SmallFloatTraits traits(CodeKind kind) {
  return kind == CodeKind::e4m3
             ? SmallFloatTraits{3, 7, 0x43e00000U, 0x7e, 0x7f, 0x80, 0x600000U, 8, 448.0F}
             : SmallFloatTraits{1, 1, 0x40c00000U, 0x7, 0x7, 0x8, 0x400000U, 2, 6.0F};
}

/// The code of a float: E4M3's byte, E2M1's nibble.
RESHARD_HOST_DEVICE constexpr std::uint32_t small_from_float(CodeKind kind, float value) {
  const SmallFloatTraits t = traits(kind);
  const std::uint32_t bits = float_bits(value), magnitude = bits & kFloatMagnitude;
  const std::uint32_t sign = (bits >> 31) * t.sign_code;
  if (magnitude > kFloatInfinity) return kind == CodeKind::e4m3 ? sign | t.nan_code : t.nan_code;
  if (magnitude >= t.largest) return sign | t.largest_code;
  const int exponent = static_cast<int>(magnitude >> 23) - 127, least = 1 - t.bias;
  const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  // Bits to drop: more if the result is subnormal.
  const int drop = 23 - t.mantissa_bits + (exponent < least ? least - exponent : 0);
  if (drop > 24) return sign;
  const std::uint32_t half = (1U << (drop - 1)) - 1, odd = mantissa >> drop & 1U;
  const std::uint32_t rounded = (mantissa + half + odd) >> drop;
  if (exponent < least) return sign | rounded;
  // The leading bit of a normal number counts one exponent.
  const auto biased = static_cast<std::uint32_t>(exponent + t.bias - 1);
  return sign | ((biased << t.mantissa_bits) + rounded);
}

/// The value of a code. Exact.
RESHARD_HOST_DEVICE constexpr float small_to_float(CodeKind kind, std::uint32_t code) {
  const SmallFloatTraits t = traits(kind);
  const std::uint32_t sign = (code & t.sign_code) != 0 ? 0x80000000U : 0;
  const std::uint32_t magnitude = code & (t.sign_code - 1);
  if (kind == CodeKind::e4m3 && magnitude == t.nan_code) return bits_float(sign | kFloatNan);
  const std::uint32_t exponent = magnitude >> t.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1U << t.mantissa_bits) - 1);
  if (exponent == 0) {
    const auto least = static_cast<std::uint32_t>(127 + 1 - t.bias - t.mantissa_bits);
    const float value = static_cast<float>(mantissa) * bits_float(least << 23);
    return bits_float(sign | float_bits(value));
  }
  const auto bias = static_cast<std::uint32_t>(127 - t.bias);
  return bits_float(sign | (exponent + bias) << 23 | mantissa << (23 - t.mantissa_bits));
}

/// 2^(byte - 127); 255 is NaN.
RESHARD_HOST_DEVICE constexpr float e8m0_to_float(std::uint32_t byte) {
  if (byte == 255) return bits_float(kFloatNan);
  return bits_float(byte == 0 ? 0x400000U : byte << 23);
}

/// 1 / e8m0_to_float(byte). @pre byte < 255
RESHARD_HOST_DEVICE constexpr float e8m0_reciprocal(std::uint32_t byte) {
  return bits_float(byte == 254 ? 0x400000U : (254 - byte) << 23);
}

/// Dtype and rounding rule of scales.
enum class ScaleKind : std::uint8_t { e8m0_up, e8m0_floor, f32_exact, f32_up, f32_floor, e4m3 };

/// The parameters that turn a block's amax into its scale.
struct ScaleMaker {
  ScaleKind kind;
  CodeKind data;
  std::uint8_t zero_block;       ///< E8M0 scale of a block of zeros.
  float factor, inverse_factor;  ///< the matrix' factor and 1 / factor, or 1. For e4m3.
};

/// A block's scale as stored, and the multiplier or divisor (see divides) that is applied to its
/// elements before the cast. If that is NaN, every element becomes NaN.
struct BlockScale {
  std::uint32_t stored;  ///< a byte, or the bits of a float.
  float by;
};

/// True if elements are divided by BlockScale::by, not multiplied.
RESHARD_HOST_DEVICE constexpr bool divides(ScaleKind kind) { return kind == ScaleKind::f32_exact; }

/// The power-of-two scale for `amax`, as an E8M0 byte. Compares mantissas instead of computing
/// amax / largest, which could round or underflow. Infinity rounds up to 254, as in
/// cvt.rp.satfinite.ue8m0x2. @pre not NaN
RESHARD_HOST_DEVICE constexpr std::uint32_t power_of_two(CodeKind data, bool up,
                                                         std::uint32_t amax) {
  const SmallFloatTraits t = traits(data);
  if (up && amax == kFloatInfinity) return 254;
  const auto exponent = static_cast<std::int32_t>(amax >> 23);
  const std::int32_t more = up && (amax & 0x7fffffU) > t.largest_top ? 1 : 0;
  const std::int32_t byte = exponent - t.largest_exponent + more;
  return byte < 0 ? 0U : static_cast<std::uint32_t>(byte);
}

/// amax / divisor; 1 if that is 0; 2^127 if amax is infinite, so that finite elements keep a value
/// and infinite ones come back as infinity. @pre not NaN
RESHARD_HOST_DEVICE constexpr float exact_scale(float amax, float divisor) {
  if (float_bits(amax) == kFloatInfinity) return bits_float(254U << 23);
  const float scale = amax / divisor;
  return scale == 0 ? 1.0F : scale;
}

/// a / b, at most the largest finite float. @pre both are positive and b is not 0
RESHARD_HOST_DEVICE constexpr float finite_quotient(float a, float b) {
  const float quotient = a / b;
  return float_bits(quotient) == kFloatInfinity ? bits_float(kFloatLargest) : quotient;
}

/// The factor of a matrix with this amax, as torchao and ModelOpt define it: its block
/// scales then reach 448.
RESHARD_HOST_DEVICE constexpr float tensor_factor(CodeKind data, float amax) {
  if (is_nan_bits(float_bits(amax))) return bits_float(kFloatNan);
  return exact_scale(amax, 448.0F * traits(data).largest_value);
}

RESHARD_HOST_DEVICE constexpr float inverse_factor(float factor) {
  return is_nan_bits(float_bits(factor)) ? factor : finite_quotient(1.0F, factor);
}

/// The factor as compressed-tensors stores it: block scales are divided by it.
RESHARD_HOST_DEVICE constexpr float tensor_divisor(CodeKind data, float amax) {
  const float factor = tensor_factor(data, amax);
  const std::uint32_t bits = float_bits(amax);
  if (bits == 0 || bits >= kFloatInfinity) return inverse_factor(factor);
  return finite_quotient(448.0F * traits(data).largest_value, amax);
}

RESHARD_HOST_DEVICE constexpr BlockScale e8m0_scale(const ScaleMaker& maker, std::uint32_t amax) {
  const bool up = maker.kind == ScaleKind::e8m0_up;
  if (amax == 0) return {maker.zero_block, 1.0F};
  const std::uint32_t byte = power_of_two(maker.data, up, amax);
  // When rounding up, engines do not scale elements of blocks with the least scale: they become 0.
  return {byte, up && byte == 0 ? 1.0F : e8m0_reciprocal(byte)};
}

RESHARD_HOST_DEVICE constexpr BlockScale f32_scale(const ScaleMaker& maker, std::uint32_t amax) {
  if (amax == 0) return {kFloatOne, 1.0F};
  if (maker.kind == ScaleKind::f32_exact) {
    const float scale = exact_scale(bits_float(amax), traits(maker.data).largest_value);
    return {float_bits(scale), scale};
  }
  const std::uint32_t byte = power_of_two(maker.data, maker.kind == ScaleKind::f32_up, amax);
  const std::uint32_t normal = byte == 0 ? 1 : byte;
  return {normal << 23, e8m0_reciprocal(normal)};
}

/// (amax / largest) / factor as E4M3; elements are multiplied by (1 / factor) / scale, in the order
/// of torchao.
RESHARD_HOST_DEVICE constexpr BlockScale e4m3_scale(const ScaleMaker& maker, std::uint32_t amax) {
  const float relative = bits_float(amax) / traits(maker.data).largest_value / maker.factor;
  const std::uint32_t byte = small_from_float(CodeKind::e4m3, relative);
  if (byte == 0) return {0, 0.0F};
  const float scale = small_to_float(CodeKind::e4m3, byte);
  return {byte, finite_quotient(maker.inverse_factor, scale)};
}

/// How a matrix' blocks get their scales. `factor_divides` as QuantFormat's; `has_factor`:
/// QuantFormat::tensor_factor, for a matrix with this amax.
RESHARD_HOST_DEVICE constexpr ScaleMaker scale_maker(ScaleKind kind, CodeKind data,
                                                     std::uint8_t zero_block, bool has_factor,
                                                     bool factor_divides, float matrix_amax) {
  ScaleMaker maker{kind, data, zero_block, 1.0F, 1.0F};
  if (has_factor) {
    maker.factor = tensor_factor(data, matrix_amax);
    maker.inverse_factor =
        factor_divides ? tensor_divisor(data, matrix_amax) : inverse_factor(maker.factor);
  }
  return maker;
}

/// The scale of a block. `amax`: the bits of its largest magnitude as a float.
RESHARD_HOST_DEVICE constexpr BlockScale block_scale(const ScaleMaker& maker, std::uint32_t amax) {
  const bool nan = is_nan_bits(amax);
  switch (maker.kind) {
    case ScaleKind::e8m0_up:
    case ScaleKind::e8m0_floor:
      return nan ? BlockScale{255, bits_float(kFloatNan)} : e8m0_scale(maker, amax);
    case ScaleKind::f32_exact:
    case ScaleKind::f32_up:
    case ScaleKind::f32_floor:
      return nan ? BlockScale{kFloatNan, bits_float(kFloatNan)} : f32_scale(maker, amax);
    case ScaleKind::e4m3: break;
  }
  if (nan || is_nan_bits(float_bits(maker.factor))) return {0x7f, bits_float(kFloatNan)};
  return e4m3_scale(maker, amax);
}

/// The code of an element.
RESHARD_HOST_DEVICE constexpr std::uint32_t encoded(CodeKind kind, bool divides, float value,
                                                    float by) {
  if (is_nan_bits(float_bits(by))) return traits(kind).nan_code;
  return small_from_float(kind, divides ? value / by : value * by);
}

/// The value of a stored scale.
RESHARD_HOST_DEVICE constexpr float scale_to_float(ScaleKind kind, std::uint32_t stored) {
  if (kind == ScaleKind::e4m3) return small_to_float(CodeKind::e4m3, stored);
  const bool byte = kind == ScaleKind::e8m0_up || kind == ScaleKind::e8m0_floor;
  return byte ? e8m0_to_float(stored) : bits_float(stored);
}

/// The value of a code. `scale`: scale_to_float() times the factor, if there is one. All elements
/// of a block with a NaN scale are the same NaN.
RESHARD_HOST_DEVICE constexpr float decoded(CodeKind kind, std::uint32_t code, float scale) {
  if (is_nan_bits(float_bits(scale))) return bits_float(kFloatNan);
  return small_to_float(kind, code) * scale;
}

}  // namespace reshard
