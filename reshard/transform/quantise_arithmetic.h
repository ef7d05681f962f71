// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one element and one scale. All kernels of quantise.h agree with it bit for bit.
// Plain functions of integers and IEEE floats without a library, so that GPU sources can include
// them.
//
// Casts round to nearest even and saturate. No addition follows a product, so that no compiler can
// fuse float operations.
#pragma once

#include <cstdint>

#include "reshard/transform/convert_arithmetic.h"
#include "reshard/transform/float_bits.h"

namespace reshard {

/// The dtypes of data: small floats; integers of 4 bits, stored as number + 8; integers of 8 bits,
/// stored as two's complement and as number + 128.
enum class CodeKind : std::uint8_t { e4m3, e2m1, int4, int8, uint8 };
inline constexpr int kCodeKinds = 5;

RESHARD_HOST_DEVICE constexpr bool is_integer(CodeKind kind) { return kind >= CodeKind::int4; }
/// The bits of a code: 4 or 8.
RESHARD_HOST_DEVICE constexpr int code_bits(CodeKind kind) {
  return kind == CodeKind::e2m1 || kind == CodeKind::int4 ? 4 : 8;
}

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
/// @pre not an integer
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
  const int drop = 23 - t.mantissa_bits;
  if (magnitude < static_cast<std::uint32_t>(128 - t.bias) << 23) {
    // Subnormal: adding this puts the unit at the last mantissa bit; the addition rounds.
    const auto exponent = static_cast<std::uint32_t>(128 - t.bias + drop);
    const float rounds = bits_float(exponent << 23);
    return sign | (float_bits(bits_float(magnitude) + rounds) - float_bits(rounds));
  }
  const std::uint32_t half = (1U << (drop - 1)) - 1, odd = magnitude >> drop & 1U;
  const auto bias = static_cast<std::uint32_t>(127 - t.bias) << t.mantissa_bits;
  return sign | (((magnitude + half + odd) >> drop) - bias);
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
    // The mantissa as a float, without a slow conversion.
    const float number = bits_float(0x4b000000U | mantissa) - 0x1p23F;
    return bits_float(sign | float_bits(number * bits_float(least << 23)));
  }
  const auto bias = static_cast<std::uint32_t>(127 - t.bias);
  return bits_float(sign | (exponent + bias) << 23 | mantissa << (23 - t.mantissa_bits));
}

/// The offset added to an integer to make its code; 0 for int8, whose code is two's complement.
RESHARD_HOST_DEVICE constexpr std::uint32_t code_offset(CodeKind kind) {
  return kind == CodeKind::int4 ? 8 : kind == CodeKind::uint8 ? 128 : 0;
}

/// Adding this to a much smaller number rounds that number to an integer, ties to even: the lowest
/// bits of the sum.
inline constexpr float kRoundsToInteger = 0x1.8p23F;

/// The code of a quotient: the nearest integer, ties to even, saturated. NaN: that of 0.
RESHARD_HOST_DEVICE constexpr std::uint32_t integer_code(CodeKind kind, float quotient) {
  const float most = kind == CodeKind::int4 ? 7.0F : 127.0F, least = -most - 1.0F;
  if (is_nan_bits(float_bits(quotient))) return code_offset(kind);
  const float inside = quotient < least ? least : quotient > most ? most : quotient;
  const std::uint32_t number = float_bits(inside + kRoundsToInteger) - float_bits(kRoundsToInteger);
  return (number + code_offset(kind)) & ((1U << code_bits(kind)) - 1);
}

/// The number of an integer's code.
RESHARD_HOST_DEVICE constexpr float integer_to_float(CodeKind kind, std::uint32_t code) {
  const auto signed_byte = static_cast<std::int32_t>(code ^ 0x80U) - 128;
  const auto number = static_cast<std::int32_t>(code - code_offset(kind));
  return static_cast<float>(kind == CodeKind::int8 ? signed_byte : number);
}

/// The number to which a scale brings the largest magnitude of its block: the largest of a small
/// float; half the range of integers, as in compressed-tensors' calculate_qparams().
RESHARD_HOST_DEVICE constexpr float largest_number(CodeKind kind) {
  if (is_integer(kind)) return kind == CodeKind::int4 ? 7.5F : 127.5F;
  return traits(kind).largest_value;
}

/// The dtype in which a quotient is rounded before it becomes an integer: that of the weights, in
/// which compressed-tensors computes.
enum class Rounding : std::uint8_t { f32, bf16, f16 };
RESHARD_HOST_DEVICE constexpr float rounded(Rounding to, float value) {
  switch (to) {
    case Rounding::f32: break;
    case Rounding::bf16: return from_bf16(to_bf16(value));
    case Rounding::f16: return from_f16(to_f16(value));
  }
  return value;
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

/// Dtype and rounding rule of scales. Only integers have scales of 16 bits.
enum class ScaleKind : std::uint8_t {
  e8m0_up,
  e8m0_floor,
  f32_exact,
  f32_up,
  f32_floor,
  e4m3,
  bf16_exact,
  f16_exact,
};

/// The parameters that turn a block's amax into its scale.
struct ScaleMaker {
  ScaleKind kind;
  CodeKind data;
  std::uint8_t zero_block;       ///< E8M0 scale of a block of zeros.
  float factor, inverse_factor;  ///< the matrix' factor and 1 / factor, or 1. For e4m3.
};

/// The bits of a scale of 16 bits, or of a float, for blocks of integers.
RESHARD_HOST_DEVICE constexpr std::uint32_t scale_bits(ScaleKind kind, float scale) {
  if (kind == ScaleKind::bf16_exact) return to_bf16(scale);
  return kind == ScaleKind::f16_exact ? to_f16(scale) : float_bits(scale);
}

/// A block's scale as stored, and the multiplier or divisor (see divides) that is applied to its
/// elements before the cast. If that is NaN, every element becomes NaN.
struct BlockScale {
  std::uint32_t stored;  ///< a byte, or the bits of a number of 16 or 32 bits.
  float by;
};

/// True if elements are divided by BlockScale::by, not multiplied.
RESHARD_HOST_DEVICE constexpr bool divides(ScaleKind kind) {
  return kind == ScaleKind::f32_exact || kind == ScaleKind::bf16_exact ||
         kind == ScaleKind::f16_exact;
}

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

/// The scale of integers, amax / half the range, rounded to the scale's dtype; that dtype's epsilon
/// where it is 0 (compressed-tensors); the largest power of two, or number of F16, for an infinity.
RESHARD_HOST_DEVICE constexpr BlockScale integer_scale(const ScaleMaker& maker,
                                                       std::uint32_t amax) {
  const bool halves = maker.kind == ScaleKind::f16_exact;
  float scale = bits_float(amax) / largest_number(maker.data);
  if (amax == kFloatInfinity) scale = halves ? 65504.0F : bits_float(254U << 23);
  if (maker.kind == ScaleKind::bf16_exact) scale = rounded(Rounding::bf16, scale);
  if (halves) scale = rounded(Rounding::f16, scale > 65504.0F ? 65504.0F : scale);
  const float epsilon = halves                                ? 0x1p-10F
                        : maker.kind == ScaleKind::bf16_exact ? 0x1p-7F
                                                              : 0x1p-23F;
  if (scale == 0) scale = epsilon;
  return {scale_bits(maker.kind, scale), scale};
}

/// The scale of a block. `amax`: the bits of its largest magnitude as a float.
RESHARD_HOST_DEVICE constexpr BlockScale block_scale(const ScaleMaker& maker, std::uint32_t amax) {
  const bool nan = is_nan_bits(amax);
  if (is_integer(maker.data)) {
    const float not_a_number = bits_float(kFloatNan);
    return nan ? BlockScale{scale_bits(maker.kind, not_a_number), not_a_number}
               : integer_scale(maker, amax);
  }
  switch (maker.kind) {
    case ScaleKind::e8m0_up:
    case ScaleKind::e8m0_floor:
      return nan ? BlockScale{255, bits_float(kFloatNan)} : e8m0_scale(maker, amax);
    case ScaleKind::f32_exact:
    case ScaleKind::f32_up:
    case ScaleKind::f32_floor:
      return nan ? BlockScale{kFloatNan, bits_float(kFloatNan)} : f32_scale(maker, amax);
    case ScaleKind::e4m3:
    case ScaleKind::bf16_exact:
    case ScaleKind::f16_exact: break;
  }
  if (nan || is_nan_bits(float_bits(maker.factor))) return {0x7f, bits_float(kFloatNan)};
  return e4m3_scale(maker, amax);
}

/// The code of an element. `rounding`: of the dtype that it had.
RESHARD_HOST_DEVICE constexpr std::uint32_t encoded(CodeKind kind, bool divides, float value,
                                                    float by, Rounding rounding) {
  if (is_integer(kind)) return integer_code(kind, rounded(rounding, value / by));
  if (is_nan_bits(float_bits(by))) return traits(kind).nan_code;
  return small_from_float(kind, divides ? value / by : value * by);
}

/// The value of a stored scale.
RESHARD_HOST_DEVICE constexpr float scale_to_float(ScaleKind kind, std::uint32_t stored) {
  if (kind == ScaleKind::e4m3) return small_to_float(CodeKind::e4m3, stored);
  if (kind == ScaleKind::bf16_exact) return from_bf16(static_cast<std::uint16_t>(stored));
  if (kind == ScaleKind::f16_exact) return from_f16(static_cast<std::uint16_t>(stored));
  const bool byte = kind == ScaleKind::e8m0_up || kind == ScaleKind::e8m0_floor;
  return byte ? e8m0_to_float(stored) : bits_float(stored);
}

/// The value of a code. `scale`: scale_to_float() times the factor, if there is one. All elements
/// of a block with a NaN scale are the same NaN.
RESHARD_HOST_DEVICE constexpr float decoded(CodeKind kind, std::uint32_t code, float scale) {
  if (is_nan_bits(float_bits(scale))) return bits_float(kFloatNan);
  const float number = is_integer(kind) ? integer_to_float(kind, code) : small_to_float(kind, code);
  if (is_nan_bits(float_bits(number))) return number;
  const float value = number * scale;
  return is_nan_bits(float_bits(value)) ? bits_float(kInvalidNan) : value;
}

}  // namespace reshard
