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
  const float inside = __builtin_fminf(__builtin_fabsf(value), 6.0F);
  // The power of two below the number, at least 1: codes of [unit, 2 * unit) are unit / 2 apart.
  const float unit = bits_float(float_bits(__builtin_fmaxf(inside, 1.0F)) & kFloatInfinity);
  // The lowest bit of this sum is worth unit / 2, so that the addition rounds; six steps more make
  // the bits of the sum's exponent, where they are added, a multiple of 16. The product is exact.
  const std::uint32_t sum = float_bits(__builtin_fmaf(unit, 0x1p22F + 3.0F, inside));
  return (float_bits(value) >> 28 & ~7U) | ((sum + (sum >> 22)) & 7U);
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

/// Four codes from `first` on as f16: two words of two.
template <CodeKind C>
__device__ inline void halves_of(std::uint64_t codes, int first, std::uint32_t (&out)[2]) {
  if (C == CodeKind::e4m3) {
#if __CUDA_ARCH__ >= 890
    RESHARD_UNROLL
    for (int k = 0; k < 2; ++k) {
      const auto two = static_cast<std::uint16_t>(codes >> (8 * first + 16 * k));
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out[k]) : "h"(two));
    }
#endif
    return;
  }
  // The upper bytes of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 as f16: the lower ones are 0. Of signs, those
  // of even codes are shifted to the top of a byte, beside those of odd ones.
  const auto at = static_cast<std::uint32_t>(codes) >> (4 * first);
  const std::uint32_t magnitudes = __byte_perm(0x3e3c3800U, 0x46444240U, at & 0x7777U),
                      signs = __byte_perm(at << 4 & 0x8080U, at & 0x8080U, 0x5140U),
                      upper = magnitudes | signs;
  out[0] = __byte_perm(upper, 0, 0x1404U);
  out[1] = __byte_perm(upper, 0, 0x3424U);
}
#endif

/// decoded() of each code. @pre are_finite()
template <CodeKind C>
RESHARD_INLINE Eight decoded_eight(std::uint64_t codes, float scale) {
  Eight out;
#if defined(__CUDA_ARCH__)
  if constexpr (C == CodeKind::e2m1 || (C == CodeKind::e4m3 && __CUDA_ARCH__ >= 890)) {
    RESHARD_UNROLL
    for (int k = 0; k < 8; k += 4) {
      std::uint32_t halves[2] = {};
      halves_of<C>(codes, k, halves);
      unpack_halves(halves[0], out.of[k], out.of[k + 1]);
      unpack_halves(halves[1], out.of[k + 2], out.of[k + 3]);
    }
    RESHARD_UNROLL
    for (int k = 0; k < 8; ++k) out.of[k] *= scale;
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

/// Divides by one number as IEEE division does, without a branch: multiplies by the inverse and
/// corrects the quotient twice by its remainder, which is exact and leaves the nearest float
/// (Markstein, 1990). @pre no inverse, quotient or remainder that counts overflows or underflows
class ExactDivisor {
 public:
  RESHARD_HOST_DEVICE explicit ExactDivisor(float by)
      : by_(by),
#if defined(__CUDA_ARCH__)
        inverse_(__frcp_rn(by)) {
  }
#else
        inverse_(1 / by) {
  }
#endif
  RESHARD_HOST_DEVICE float inverse() const { return inverse_; }
  RESHARD_HOST_DEVICE float quotient(float number) const {
    const float quotient = corrected(number, number * inverse_);
    return corrected(number, quotient);
  }

 private:
  RESHARD_HOST_DEVICE float corrected(float number, float quotient) const {
    return __builtin_fmaf(__builtin_fmaf(-by_, quotient, number), inverse_, quotient);
  }

  float by_, inverse_;
};

/// Each value divided by `by`, rounded to nearest even; quotients below 2^-40 may be others, which
/// have the code of 0, too. @pre by > 0, or NaN
RESHARD_INLINE Eight divided_eight(const Eight& values, float by) {
  Eight out;
#if defined(__CUDA_ARCH__)
  // Neither the inverse nor a remainder that counts underflows.
  const float unit = by < 0x1p-60F ? 0x1p64F : by > 0x1p60F ? 0x1p-64F : 1.0F;
  const ExactDivisor divisor(by * unit);
  RESHARD_UNROLL
  for (int k = 0; k < 8; ++k) {
    const float number = fabsf(values.of[k]) * unit;
    float quotient = divisor.quotient(number);
    // An infinite number leaves no remainder to correct with.
    quotient = number < bits_float(kFloatInfinity) ? quotient : number * divisor.inverse();
    out.of[k] = bits_float(float_bits(quotient) | (float_bits(values.of[k]) & 0x80000000U));
  }
#else
  for (int k = 0; k < 8; ++k) out.of[k] = values.of[k] / by;
#endif
  return out;
}

/// small_from_float() and small_to_float() of E4M3. @pre neither is NaN
RESHARD_INLINE std::uint32_t e4m3_code(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(0.0F), "f"(value));
  return out;
#else
  return small_from_float(CodeKind::e4m3, value);
#endif
}
RESHARD_INLINE float e4m3_number(std::uint32_t code) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint32_t halves;
  float out, zero;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(code)));
  unpack_halves(halves, out, zero);
  return out;
#else
  return small_to_float(CodeKind::e4m3, code);
#endif
}

/// Makes the scales of many blocks of a matrix: block_scale(), with fewer instructions for blocks
/// and factors of ordinary size.
template <CodeKind C, ScaleKind S>
class BlockScales {
 public:
  RESHARD_HOST_DEVICE explicit BlockScales(const ScaleMaker& maker)
      : maker_(maker), factor_(maker.factor) {
    maker_.data = C;  // Known here, so that other kinds need no code.
    maker_.kind = S;
    is_ordinary_ =
        is_ordinary(float_bits(maker.factor)) && is_ordinary(float_bits(maker.inverse_factor));
  }
  /// `amax`: the bits of the block's largest magnitude.
  RESHARD_INLINE BlockScale of(std::uint32_t amax) const {
    if constexpr (S == ScaleKind::e4m3) {
      if (!is_ordinary_ || (amax != 0 && !is_ordinary(amax)))
        return any(maker_.factor, maker_.inverse_factor, amax);
      const float relative = factor_.quotient(ExactDivisor(6.0F).quotient(bits_float(amax)));
      const std::uint32_t code = e4m3_code(relative);
      const ExactDivisor scale(code == 0 ? 1.0F : e4m3_number(code));
      return {code, code == 0 ? 0.0F : scale.quotient(maker_.inverse_factor)};
    } else {
      return block_scale(maker_, amax);
    }
  }

 private:
  /// From 2^-60 to below 2^60: what is computed of two such numbers is finite and normal.
  RESHARD_HOST_DEVICE static bool is_ordinary(std::uint32_t bits) {
    return bits - (67U << 23) < 120U << 23;
  }
  /// Takes numbers, not itself, which would have to be in memory.
  RESHARD_CALLED static BlockScale any(float factor, float inverse_factor, std::uint32_t amax) {
    return block_scale({S, C, 0, factor, inverse_factor}, amax);
  }

  ScaleMaker maker_;
  ExactDivisor factor_;
  bool is_ordinary_;
};

}  // namespace reshard::cuda
