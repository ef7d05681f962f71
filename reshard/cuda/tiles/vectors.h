// SPDX-License-Identifier: Apache-2.0
// Eight values that a thread holds: as they are stored, and as floats. A GPU converts them with its
// own instructions, in pairs, where these give the bytes of the arithmetic's plain functions; a
// host compiler uses the functions.
#pragma once

#include <type_traits>

#include "reshard/transform/convert_arithmetic.h"

/// Unrolls the loop that follows, so that arrays which it indexes stay in registers.
#if defined(__CUDACC__)
#define RESHARD_UNROLL _Pragma("unroll")
#else
#define RESHARD_UNROLL
#endif

/// Functions of GPU and host: one that takes part in its caller's registers, and one that does not,
/// because it is large or rare.
#define RESHARD_INLINE RESHARD_HOST_DEVICE inline __attribute__((always_inline))
#define RESHARD_CALLED RESHARD_HOST_DEVICE __attribute__((noinline))

namespace reshard::cuda {

struct alignas(16) Vector16 {
  std::uint64_t low, high;
};

/// A pointer to the GPU's memory, or to host memory that it reaches: not to a thread block's own. A
/// compiler that knows that takes faster instructions.
template <class T>
RESHARD_HOST_DEVICE T* in_global_memory(T* at) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(at));
#endif
  return at;
}

/// Word `w` of four. @pre w is known when this is compiled, so that all stays in registers
RESHARD_HOST_DEVICE inline std::uint32_t word_of(const Vector16& v, int w) {
  const std::uint64_t half = w < 2 ? v.low : v.high;
  return static_cast<std::uint32_t>(w % 2 == 0 ? half : half >> 32);
}

/// Bytes of a value. @pre is_convertible(dtype)
RESHARD_HOST_DEVICE constexpr int width_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

RESHARD_HOST_DEVICE inline float load_value(DType dtype, const std::byte* at) {
  if (dtype == DType::f32) return *reinterpret_cast<const float*>(at);
  const std::uint16_t half = *reinterpret_cast<const std::uint16_t*>(at);
  return dtype == DType::bf16 ? from_bf16(half) : from_f16(half);
}

RESHARD_HOST_DEVICE inline void store_value(DType dtype, float value, std::byte* at) {
  if (dtype == DType::f32) {
    *reinterpret_cast<float*>(at) = value;
  } else {
    *reinterpret_cast<std::uint16_t*>(at) = dtype == DType::bf16 ? to_bf16(value) : to_f16(value);
  }
}

/// The argument of a generic function whose value is known when it is compiled.
template <auto V>
using Constant = std::integral_constant<decltype(V), V>;

/// Calls f(Constant<dtype>()). @pre is_convertible(dtype)
template <class F>
RESHARD_HOST_DEVICE void with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(Constant<DType::f32>());
    case DType::f16: return f(Constant<DType::f16>());
    default: return f(Constant<DType::bf16>());
  }
}

struct Eight {
  float of[8];
};

/// Eight values as they are stored, at a multiple of 16 bytes.
template <DType D>
struct Stored {
  Vector16 of[D == DType::f32 ? 2 : 1];

  RESHARD_HOST_DEVICE static Stored load(const std::byte* at) {
    Stored out;
    RESHARD_UNROLL
    for (int i = 0; i < width_of(D) / 2; ++i) out.of[i] = reinterpret_cast<const Vector16*>(at)[i];
    return out;
  }
  RESHARD_HOST_DEVICE static constexpr Stored zeros() { return {}; }

  RESHARD_HOST_DEVICE Eight values() const {
    Eight out;
    RESHARD_UNROLL
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t word =
          D == DType::f32 ? word_of(of[k / 4 % (width_of(D) / 2)], k % 4) : word_of(of[0], k / 2);
      if (D == DType::f32) {
        out.of[k] = bits_float(word);
      } else if (D == DType::bf16) {
        out.of[k] = bits_float(k % 2 == 0 ? word << 16 : word & 0xffff0000U);
      } else {
        out.of[k] = half(word, k % 2);
      }
    }
    return out;
  }

  /// The bits, as a float, of the largest magnitude; NaN is larger than any other.
  RESHARD_HOST_DEVICE std::uint32_t magnitude() const {
    std::uint32_t most = 0;
    const auto raise = [&](std::uint32_t bits) { most = bits > most ? bits : most; };
    if (D == DType::bf16) {
      // Shifted left by one, without signs; what is below a high half decides nothing.
      RESHARD_UNROLL
      for (int w = 0; w < 4; ++w) {
        raise(word_of(of[0], w) << 1);
        raise(word_of(of[0], w) << 17);
      }
      return most >> 1 & 0x7fff0000U;
    }
    const Eight all = values();
    RESHARD_UNROLL
    for (int k = 0; k < 8; ++k) raise(float_bits(all.of[k]) & kFloatMagnitude);
    return most;
  }

 private:
  RESHARD_HOST_DEVICE static float half(std::uint32_t word, int high) {
    const auto bits = static_cast<std::uint16_t>(high != 0 ? word >> 16 : word);
#if defined(__CUDA_ARCH__)
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
    // The instruction has another NaN.
    const std::uint32_t nan = (bits & 0x8000U) << 16 | kFloatNan | (bits & 0x3ffU) << 13;
    return (bits & 0x7fffU) > 0x7c00U ? bits_float(nan) : out;
#else
    return from_f16(bits);
#endif
  }
};

/// Two floats as D in a word, the first one low, to nearest even. @pre neither is NaN
template <DType D>
RESHARD_HOST_DEVICE std::uint32_t packed(float first, float second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t out;
  if (D == DType::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  return out;
#else
  return D == DType::bf16 ? std::uint32_t{to_bf16(first)} | std::uint32_t{to_bf16(second)} << 16
                          : std::uint32_t{to_f16(first)} | std::uint32_t{to_f16(second)} << 16;
#endif
}

/// Stores eight values of 16 bits one by one: a NaN keeps its payload.
template <DType D>
RESHARD_INLINE void store_each(const Eight& values, std::byte* at) {
  RESHARD_UNROLL
  for (int k = 0; k < 8; ++k) store_value(D, values.of[k], at + 2 * k);
}

/// Stores eight values at a multiple of 16 bytes. @pre none is NaN
template <DType D>
RESHARD_INLINE void store_numbers(const Eight& values, std::byte* at) {
  const auto pair = [](std::uint32_t low, std::uint32_t high) {
    return std::uint64_t{high} << 32 | low;
  };
  auto* const to = reinterpret_cast<Vector16*>(at);
  const auto& v = values.of;
  if (D == DType::f32) {
    to[0] = {pair(float_bits(v[0]), float_bits(v[1])), pair(float_bits(v[2]), float_bits(v[3]))};
    to[1] = {pair(float_bits(v[4]), float_bits(v[5])), pair(float_bits(v[6]), float_bits(v[7]))};
    return;
  }
  *to = {pair(packed<D>(v[0], v[1]), packed<D>(v[2], v[3])),
         pair(packed<D>(v[4], v[5]), packed<D>(v[6], v[7]))};
}

/// Stores eight values at a multiple of 16 bytes.
template <DType D>
RESHARD_INLINE void store_eight(const Eight& values, std::byte* at) {
  bool nan = false;
  RESHARD_UNROLL
  for (int k = 0; k < 8; ++k) nan = nan || values.of[k] != values.of[k];
  if (nan && D != DType::f32) return store_each<D>(values, at);
  store_numbers<D>(values, at);
}

}  // namespace reshard::cuda
