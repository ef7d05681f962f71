// SPDX-License-Identifier: Apache-2.0
// Eight values as codes of small floats or integers, and back. As vectors.h.
#pragma once

#include "reshard/cuda/tiles/vectors.h"
#include "reshard/transform/quantise_arithmetic.h"

namespace reshard::cuda {

/// Calls f(Constant<kind>()).
template <class F>
RESHARD_HOST_DEVICE void with_codes(CodeKind kind, F&& f) {
  switch (kind) {
    case CodeKind::e4m3: return f(Constant<CodeKind::e4m3>());
    case CodeKind::e2m1: return f(Constant<CodeKind::e2m1>());
    case CodeKind::int4: return f(Constant<CodeKind::int4>());
    case CodeKind::int8: return f(Constant<CodeKind::int8>());
    case CodeKind::uint8: return f(Constant<CodeKind::uint8>());
  }
}

/// The same for scales of such codes. @pre takes_scale()
template <CodeKind C, class F>
RESHARD_HOST_DEVICE void with_scale(ScaleKind kind, F&& f) {
  if constexpr (is_integer(C)) {
    if (kind == ScaleKind::bf16_exact) return f(Constant<ScaleKind::bf16_exact>());
    if (kind == ScaleKind::f16_exact) return f(Constant<ScaleKind::f16_exact>());
    return f(Constant<ScaleKind::f32_exact>());
  } else {
    if (kind == ScaleKind::e8m0_up) return f(Constant<ScaleKind::e8m0_up>());
    if (kind == ScaleKind::e8m0_floor) return f(Constant<ScaleKind::e8m0_floor>());
    if constexpr (C == CodeKind::e2m1) return f(Constant<ScaleKind::e4m3>());
    if (kind == ScaleKind::f32_up) return f(Constant<ScaleKind::f32_up>());
    if (kind == ScaleKind::f32_floor) return f(Constant<ScaleKind::f32_floor>());
    return f(Constant<ScaleKind::f32_exact>());
  }
}
constexpr bool takes_scale(CodeKind codes, ScaleKind kind) {
  const bool is_exponent = kind == ScaleKind::e8m0_up || kind == ScaleKind::e8m0_floor;
  const bool is_half = kind == ScaleKind::bf16_exact || kind == ScaleKind::f16_exact;
  if (is_integer(codes)) return is_half || kind == ScaleKind::f32_exact;
  if (codes == CodeKind::e2m1) return is_exponent || kind == ScaleKind::e4m3;
  return !is_half && kind != ScaleKind::e4m3;
}

/// small_from_float() of E2M1, without a branch. @pre not NaN
RESHARD_INLINE std::uint32_t e2m1_code(float value) {
  const std::uint32_t bits = float_bits(value), sign = bits >> 31 << 3;
  const float magnitude = bits_float(bits & kFloatMagnitude);
  const float inside = magnitude < 6.0F ? magnitude : 6.0F;
  const std::uint32_t of = float_bits(inside);
  // From 1 on a mantissa bit, below it halves: the additions round.
  const std::uint32_t normal = ((of + 0x1fffffU + (of >> 22 & 1U)) >> 22) - 252U;
  const std::uint32_t halves = float_bits(inside + 0x1p22F) - float_bits(0x1p22F);
  return sign | (inside < 1.0F ? halves : normal);
}

/// Codes of eight quotients, the first one lowest. @pre small floats: no quotient is NaN
template <CodeKind C>
RESHARD_INLINE std::uint64_t codes_of(const Eight& quotients, Rounding rounding) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if (C == CodeKind::e4m3) {
    std::uint64_t out = 0;
    RESHARD_UNROLL
    for (int k = 0; k < 8; k += 2) {
      std::uint16_t two;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
          : "=h"(two)
          : "f"(quotients.of[k + 1]), "f"(quotients.of[k]));
      out |= std::uint64_t{two} << (8 * k);
    }
    return out;
  }
#endif
  std::uint64_t out = 0;
  RESHARD_UNROLL
  for (int k = 0; k < 8; ++k) {
    const float q = quotients.of[k];
    const std::uint32_t code = is_integer(C)         ? integer_code(C, rounded(rounding, q))
                               : C == CodeKind::e2m1 ? e2m1_code(q)
                                                     : small_from_float(C, q);
    out |= std::uint64_t{code} << (k * code_bits(C));
  }
  return out;
}

/// Codes of sixteen values, eight in each, side by side in memory at a multiple of their size.
struct SixteenCodes {
  std::uint64_t first, second;
};
template <CodeKind C>
RESHARD_HOST_DEVICE void store_sixteen(const SixteenCodes& codes, std::byte* at) {
  if (code_bits(C) == 8)
    *reinterpret_cast<Vector16*>(at) = {codes.first, codes.second};
  else
    *reinterpret_cast<std::uint64_t*>(at) = codes.first | codes.second << 32;
}

/// Stores eight codes of `bits` bits, at a multiple of their size.
RESHARD_INLINE void store_codes(std::uint64_t codes, int bits, std::byte* at) {
  if (bits == 8)
    *reinterpret_cast<std::uint64_t*>(at) = codes;
  else
    *reinterpret_cast<std::uint32_t*>(at) = static_cast<std::uint32_t>(codes);
}

/// True if decoded_eight() takes the codes: neither a code nor the scale is NaN or infinite.
template <CodeKind C>
RESHARD_INLINE bool are_finite(std::uint64_t codes, float scale) {
  if ((float_bits(scale) & kFloatInfinity) == kFloatInfinity) return false;
  constexpr std::uint64_t kEach = 0x0101010101010101ULL;
  return C != CodeKind::e4m3 || (((codes & 0x7f * kEach) + kEach) & 0x80 * kEach) == 0;
}

#if defined(__CUDA_ARCH__)
/// Two floats of two f16 in a word, the first one low. @pre neither is NaN
__device__ inline void unpack_halves(std::uint32_t halves, float& first, float& second) {
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(first), "=f"(second)
      : "r"(halves));
}

/// Codes 2 * `pair` and the next one as f16.
template <CodeKind C>
__device__ inline std::uint32_t halves_of(std::uint64_t codes, int pair) {
  std::uint32_t halves = 0;
  if (C == CodeKind::e4m3) {
#if __CUDA_ARCH__ >= 890
    const auto two = static_cast<std::uint16_t>(codes >> (16 * pair));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(two));
#endif
    return halves;
  }
  // The upper bytes of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 as f16: the lower ones are 0.
  const auto at = static_cast<std::uint32_t>(codes) >> (8 * pair);
  const std::uint32_t upper = __byte_perm(0x3e3c3800U, 0x46444240U, at & 0x77U);
  halves = __byte_perm(upper, 0, 0x1404);
  return halves | (at << 12 & 0x8000U) | (at << 24 & 0x80000000U);
}
#endif

/// decoded() of each code. @pre are_finite()
template <CodeKind C>
RESHARD_INLINE Eight decoded_eight(std::uint64_t codes, float scale) {
  Eight out;
#if defined(__CUDA_ARCH__)
  if constexpr (C == CodeKind::e2m1 || (C == CodeKind::e4m3 && __CUDA_ARCH__ >= 890)) {
    RESHARD_UNROLL
    for (int k = 0; k < 8; k += 2) {
      unpack_halves(halves_of<C>(codes, k / 2), out.of[k], out.of[k + 1]);
      out.of[k] *= scale;
      out.of[k + 1] *= scale;
    }
    return out;
  } else
#endif
  {
    RESHARD_UNROLL
    for (int k = 0; k < 8; ++k) {
      const auto code =
          static_cast<std::uint32_t>(codes >> (k * code_bits(C))) & ((1U << code_bits(C)) - 1);
      out.of[k] = (is_integer(C) ? integer_to_float(C, code) : small_to_float(C, code)) * scale;
    }
    return out;
  }
}

/// Stores decoded() of each of eight codes, whatever they and the scale are.
template <DType D, CodeKind C>
RESHARD_INLINE void store_decoded(std::uint64_t codes, float scale, std::byte* at) {
#if defined(__CUDACC__)
#pragma unroll 1
#endif
  for (int k = 0; k < 8; ++k) {
    const auto code = static_cast<std::uint32_t>(codes) & ((1U << code_bits(C)) - 1);
    store_value(D, decoded(C, code, scale), at + k * width_of(D));
    codes >>= code_bits(C);
  }
}

/// Each value divided by `by`, rounded to nearest even; quotients below 2^-40 may be others, which
/// have the code of 0, too. A GPU multiplies by the inverse and corrects the quotient twice by its
/// remainder, which is exact and leaves the nearest float (Markstein, 1990). @pre by > 0, or NaN
RESHARD_INLINE Eight divided_eight(const Eight& values, float by) {
  Eight out;
#if defined(__CUDA_ARCH__)
  // Neither the inverse nor a remainder that counts underflows.
  const float unit = by < 0x1p-60F ? 0x1p64F : by > 0x1p60F ? 0x1p-64F : 1.0F;
  const float divisor = by * unit, inverse = __frcp_rn(divisor);
  RESHARD_UNROLL
  for (int k = 0; k < 8; ++k) {
    const float number = fabsf(values.of[k]) * unit;
    float quotient = number * inverse;
    quotient = fmaf(fmaf(-divisor, quotient, number), inverse, quotient);
    quotient = fmaf(fmaf(-divisor, quotient, number), inverse, quotient);
    // An infinite number leaves no remainder to correct with.
    quotient = number < bits_float(kFloatInfinity) ? quotient : number * inverse;
    out.of[k] = bits_float(float_bits(quotient) | (float_bits(values.of[k]) & 0x80000000U));
  }
#else
  for (int k = 0; k < 8; ++k) out.of[k] = values.of[k] / by;
#endif
  return out;
}

}  // namespace reshard::cuda
