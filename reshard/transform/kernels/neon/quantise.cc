// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/kernels/quantise_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <bit>
#include <cstring>

#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/kernels/unroll.h"

#define RESHARD_TARGET

namespace reshard::kernels {
namespace {

constexpr std::ptrdiff_t kLanes = 8;

struct Floats {
  float32x4_t low, high;
};

struct Ints {
  uint32x4_t low, high;
};

inline Ints all(std::uint32_t word) { return {vdupq_n_u32(word), vdupq_n_u32(word)}; }
inline Floats broadcast(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
inline Ints bits_of(Floats a) {
  return {vreinterpretq_u32_f32(a.low), vreinterpretq_u32_f32(a.high)};
}
inline Floats floats_of(Ints a) {
  return {vreinterpretq_f32_u32(a.low), vreinterpretq_f32_u32(a.high)};
}
inline Floats operator*(Floats a, Floats b) {
  return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}
inline Floats operator/(Floats a, Floats b) {
  return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}
inline Floats operator+(Floats a, Floats b) {
  return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}
inline Ints operator+(Ints a, Ints b) {
  return {vaddq_u32(a.low, b.low), vaddq_u32(a.high, b.high)};
}
inline Ints operator-(Ints a, Ints b) {
  return {vsubq_u32(a.low, b.low), vsubq_u32(a.high, b.high)};
}
inline Ints operator|(Ints a, Ints b) {
  return {vorrq_u32(a.low, b.low), vorrq_u32(a.high, b.high)};
}
inline Ints operator&(Ints a, std::uint32_t b) {
  return {vandq_u32(a.low, vdupq_n_u32(b)), vandq_u32(a.high, vdupq_n_u32(b))};
}
inline Ints operator+(Ints a, std::uint32_t b) { return a + all(b); }
inline Ints operator-(Ints a, std::uint32_t b) { return a - all(b); }
inline Ints operator<<(Ints a, int places) {
  return {vshlq_u32(a.low, vdupq_n_s32(places)), vshlq_u32(a.high, vdupq_n_s32(places))};
}
inline Ints operator>>(Ints a, int places) { return a << -places; }
inline Ints smaller(Ints a, std::uint32_t b) {
  return {vminq_u32(a.low, vdupq_n_u32(b)), vminq_u32(a.high, vdupq_n_u32(b))};
}
inline Ints larger(Ints a, std::uint32_t b) {
  return {vmaxq_u32(a.low, vdupq_n_u32(b)), vmaxq_u32(a.high, vdupq_n_u32(b))};
}
/// The bits in `mask` from a, the others from b.
inline Ints picked(std::uint32_t mask, Ints a, Ints b) { return (a & mask) | (b & ~mask); }
inline bool all_below(Ints a, std::uint32_t limit) {
  return vmaxvq_u32(vmaxq_u32(a.low, a.high)) < limit;
}

inline uint8x16_t load_bytes(const void* src) {
  return vld1q_u8(static_cast<const std::uint8_t*>(src));
}
inline void put(uint8x16_t a, void* dst) { vst1q_u8(static_cast<std::uint8_t*>(dst), a); }

inline Ints load_words(const std::uint32_t* src) { return {vld1q_u32(src), vld1q_u32(src + 4)}; }
inline Ints load_words(const float* src) { return bits_of({vld1q_f32(src), vld1q_f32(src + 4)}); }
inline void store_words(Ints a, std::uint32_t* dst) {
  vst1q_u32(dst, a.low);
  vst1q_u32(dst + 4, a.high);
}
inline Floats load_f32(const std::byte* src) {
  return {vreinterpretq_f32_u8(load_bytes(src)), vreinterpretq_f32_u8(load_bytes(src + 16))};
}
inline Floats load_bf16(const std::byte* src) {
  const uint16x8_t halves = vreinterpretq_u16_u8(load_bytes(src));
  return floats_of({vshll_n_u16(vget_low_u16(halves), 16), vshll_n_u16(vget_high_u16(halves), 16)});
}
inline Floats floats_of_halves(uint16x8_t halves) {
  const float16x8_t numbers = vreinterpretq_f16_u16(halves);
  return {vcvt_f32_f16(vget_low_f16(numbers)), vcvt_f32_f16(vget_high_f16(numbers))};
}
inline Floats load_f16(const std::byte* src) {
  return floats_of_halves(vreinterpretq_u16_u8(load_bytes(src)));
}

/// The low halves of all words.
inline uint16x8_t narrowed(Ints a) { return vcombine_u16(vmovn_u32(a.low), vmovn_u32(a.high)); }

// No store goes past the caches: whether that is faster has not been measured.
template <bool Stream>
inline void store_f32(Floats a, std::byte* dst) {
  put(vreinterpretq_u8_f32(a.low), dst);
  put(vreinterpretq_u8_f32(a.high), dst + 16);
}
template <bool Stream>
inline void store_f16(Floats a, std::byte* dst) {
  put(vreinterpretq_u8_f16(vcombine_f16(vcvt_f16_f32(a.low), vcvt_f16_f32(a.high))), dst);
}
/// @pre not NaN
template <bool Stream>
inline void store_bf16(Floats a, std::byte* dst) {
  const Ints bits = bits_of(a);
  put(vreinterpretq_u8_u16(narrowed((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)), dst);
}

template <CodeKind Kind, bool Stream>
inline void store_codes(Ints codes, std::byte* data) {
  const uint8x8_t bytes = vmovn_u16(narrowed(codes));
  if constexpr (code_bits(Kind) == 8) {
    vst1_u8(reinterpret_cast<std::uint8_t*>(data), bytes);
  } else {
    // The second code of a pair is the upper half of its byte.
    const uint16x4_t pairs = vreinterpret_u16_u8(bytes);
    const uint16x4_t joined = vorr_u16(pairs, vshr_n_u16(pairs, 4));
    const uint8x8_t packed = vmovn_u16(vcombine_u16(joined, joined));
    const std::uint32_t word = vget_lane_u32(vreinterpret_u32_u8(packed), 0);
    std::memcpy(data, &word, sizeof word);
  }
}

template <CodeKind Kind>
constexpr std::ptrdiff_t kCodesTogether = 16;

/// Sixteen codes of 4 bits, a byte each.
inline uint8x16_t nibbles(const std::byte* data) {
  const uint8x8_t packed = vld1_u8(reinterpret_cast<const std::uint8_t*>(data));
  const uint8x8_t low = vand_u8(packed, vdup_n_u8(15)), high = vshr_n_u8(packed, 4);
  return vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high));
}

inline uint8x8_t eight_of(uint8x16_t codes, std::ptrdiff_t first) {
  return first == 0 ? vget_low_u8(codes) : vget_high_u8(codes);
}

/// kCodesTogether codes.
template <CodeKind Kind>
class Codes;

template <>
class Codes<CodeKind::e4m3> {
 public:
  explicit Codes(const std::byte* data) : codes_(load_bytes(data)) {}

  bool any_nan() const { return vmaxvq_u8(vandq_u8(codes_, vdupq_n_u8(0x7f))) == 0x7f; }
  /// The numbers from `first` on, 2^8 too small.
  Floats floats(std::ptrdiff_t first) const {
    const uint16x8_t wide = vmovl_u8(eight_of(codes_, first));
    const uint16x8_t magnitude = vandq_u16(vshlq_n_u16(wide, 7), vdupq_n_u16(0x3f80));
    const uint16x8_t sign = vandq_u16(vshlq_n_u16(wide, 8), vdupq_n_u16(0x8000));
    return floats_of_halves(vorrq_u16(magnitude, sign));
  }

 private:
  uint8x16_t codes_;
};

template <>
class Codes<CodeKind::e2m1> {
 public:
  explicit Codes(const std::byte* data) {
    // The code is the upper byte of the half; the lower byte is 0.
    static constexpr std::uint8_t kTops[16] = {0,    0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                                               0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
    tops_ = vqtbl1q_u8(vld1q_u8(kTops), nibbles(data));
  }

  static bool any_nan() { return false; }
  Floats floats(std::ptrdiff_t first) const {
    return floats_of_halves(vshll_n_u8(eight_of(tops_, first), 8));
  }

 private:
  uint8x16_t tops_;
};

/// Eight numbers of codes in bytes.
template <CodeKind Kind>
inline Floats integers(uint8x8_t codes) {
  if constexpr (Kind == CodeKind::int8) {
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(codes));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))),
            vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide)))};
  } else {
    const uint16x8_t wide = vmovl_u8(codes);
    const Ints numbers =
        Ints{vmovl_u16(vget_low_u16(wide)), vmovl_u16(vget_high_u16(wide))} - code_offset(Kind);
    return {vcvtq_f32_s32(vreinterpretq_s32_u32(numbers.low)),
            vcvtq_f32_s32(vreinterpretq_s32_u32(numbers.high))};
  }
}

template <CodeKind Kind>
  requires(is_integer(Kind))
class Codes<Kind> {
 public:
  explicit Codes(const std::byte* data)
      : codes_(code_bits(Kind) == 4 ? nibbles(data) : load_bytes(data)) {}

  static bool any_nan() { return false; }
  Floats floats(std::ptrdiff_t first) const { return integers<Kind>(eight_of(codes_, first)); }

 private:
  uint8x16_t codes_;
};

/// The largest magnitude, as bits of the source dtype.
class RawMaximum {
 public:
  static constexpr std::ptrdiff_t kVectorBytes = 16;

  template <class Source>
  void add(const std::byte* src) {
    const uint8x16_t bits = load_bytes(src);
    if constexpr (Source::kBytes == 2) {
      const uint16x8_t magnitude = vandq_u16(vreinterpretq_u16_u8(bits), vdupq_n_u16(0x7fff));
      maximum_ = vreinterpretq_u8_u16(vmaxq_u16(vreinterpretq_u16_u8(maximum_), magnitude));
    } else {
      const uint32x4_t magnitude = vandq_u32(vreinterpretq_u32_u8(bits), vdupq_n_u32(0x7fffffff));
      maximum_ = vreinterpretq_u8_u32(vmaxq_u32(vreinterpretq_u32_u8(maximum_), magnitude));
    }
  }

  /// @pre n > 0 is less than the elements of a vector
  template <class Source>
  void add_some(const std::byte* src, std::ptrdiff_t n) {
    alignas(16) std::byte padded[kVectorBytes] = {};
    std::memcpy(padded, src, static_cast<std::size_t>(n * Source::kBytes));
    add<Source>(padded);
  }

  template <class Source>
  std::uint32_t float_bits() const;

 private:
  std::uint32_t raw16() const { return vmaxvq_u16(vreinterpretq_u16_u8(maximum_)); }
  std::uint32_t raw32() const { return vmaxvq_u32(vreinterpretq_u32_u8(maximum_)); }

  uint8x16_t maximum_ = vdupq_n_u8(0);
};

// Nothing but block by block has been measured.
template <class Source>
inline std::ptrdiff_t several_amaxes(const std::byte*, std::ptrdiff_t, std::ptrdiff_t,
                                     std::uint32_t*) {
  return 0;
}

template <class Source, CodeKind Kind, bool Stream>
inline std::ptrdiff_t shift_exponents(const std::byte*, std::byte*, std::ptrdiff_t, std::ptrdiff_t,
                                      const float*, const std::byte*) {
  return 0;
}

template <class Source, CodeKind Kind, bool Divides, bool Stream>
inline std::ptrdiff_t encode_wide(const std::byte*, std::byte*, std::ptrdiff_t, Floats,
                                  const std::byte*) {
  return 0;
}

#include "reshard/transform/kernels/quantise_kernels.inc"

}  // namespace

const QuantiseKernels& neon_quantise_kernels() {
  static const QuantiseKernels kKernels = {kernels_of<Bf16>(), kernels_of<F16>(), kernels_of<F32>(),
                                           scales};
  return kKernels;
}

}  // namespace reshard::kernels
#else
const reshard::kernels::QuantiseKernels& reshard::kernels::neon_quantise_kernels() {
  return portable_quantise_kernels();
}
#endif
