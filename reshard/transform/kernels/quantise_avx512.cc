// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/kernels/quantise_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <bit>

#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/kernels/unroll.h"

#define RESHARD_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

namespace reshard::kernels {
namespace {

constexpr std::ptrdiff_t kLanes = 16;
/// A full mask. Masked intrinsics: g++ 12 warns that the plain ones read uninitialised values.
constexpr __mmask16 kAll = 0xffff;

struct Floats {
  __m512 v;
};

struct Ints {
  __m512i v;
};

RESHARD_TARGET inline Ints all(std::uint32_t word) {
  return {_mm512_set1_epi32(static_cast<int>(word))};
}
RESHARD_TARGET inline Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
RESHARD_TARGET inline Ints bits_of(Floats a) { return {_mm512_castps_si512(a.v)}; }
RESHARD_TARGET inline Floats floats_of(Ints a) { return {_mm512_castsi512_ps(a.v)}; }
RESHARD_TARGET inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
RESHARD_TARGET inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
RESHARD_TARGET inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
RESHARD_TARGET inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
RESHARD_TARGET inline Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
RESHARD_TARGET inline Ints operator&(Ints a, std::uint32_t b) {
  return {_mm512_and_si512(a.v, all(b).v)};
}
RESHARD_TARGET inline Ints operator+(Ints a, std::uint32_t b) { return a + all(b); }
RESHARD_TARGET inline Ints operator-(Ints a, std::uint32_t b) { return a - all(b); }
RESHARD_TARGET inline Ints operator>>(Ints a, int places) {
  return {_mm512_maskz_srli_epi32(kAll, a.v, static_cast<unsigned>(places))};
}
RESHARD_TARGET inline Ints smaller(Ints a, std::uint32_t b) {
  return {_mm512_maskz_min_epu32(kAll, a.v, all(b).v)};
}
RESHARD_TARGET inline Ints larger(Ints a, std::uint32_t b) {
  return {_mm512_maskz_max_epu32(kAll, a.v, all(b).v)};
}
RESHARD_TARGET inline Ints operator<<(Ints a, int places) {
  return {_mm512_maskz_slli_epi32(kAll, a.v, static_cast<unsigned>(places))};
}
/// The bits in `mask` from a, the others from b.
RESHARD_TARGET inline Ints picked(std::uint32_t mask, Ints a, Ints b) {
  return {_mm512_ternarylogic_epi32(all(mask).v, a.v, b.v, 0xca)};
}
RESHARD_TARGET inline bool all_below(Ints a, std::uint32_t limit) {
  return _mm512_cmplt_epu32_mask(a.v, all(limit).v) == kAll;
}
RESHARD_TARGET inline Ints load_words(const void* src) { return {_mm512_loadu_si512(src)}; }
RESHARD_TARGET inline void store_words(Ints a, std::uint32_t* dst) {
  _mm512_storeu_si512(dst, a.v);
}

RESHARD_TARGET inline Floats load_f32(const std::byte* src) { return {_mm512_loadu_ps(src)}; }
RESHARD_TARGET inline Floats load_bf16(const std::byte* src) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  return {_mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, halves), 16))};
}
RESHARD_TARGET inline Floats load_f16(const std::byte* src) {
  return {_mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)))};
}

/// Stores whole registers, past the caches or not.
template <bool Stream>
RESHARD_TARGET inline void put(__m512i a, std::byte* dst) {
  Stream ? _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), a) : _mm512_storeu_si512(dst, a);
}
template <bool Stream>
RESHARD_TARGET inline void put(__m256i a, std::byte* dst) {
  auto* const at = reinterpret_cast<__m256i*>(dst);
  Stream ? _mm256_stream_si256(at, a) : _mm256_storeu_si256(at, a);
}
template <bool Stream>
RESHARD_TARGET inline void put(__m128i a, std::byte* dst) {
  auto* const at = reinterpret_cast<__m128i*>(dst);
  Stream ? _mm_stream_si128(at, a) : _mm_storeu_si128(at, a);
}

template <bool Stream>
RESHARD_TARGET inline void store_f32(Floats a, std::byte* dst) {
  put<Stream>(_mm512_castps_si512(a.v), dst);
}
template <bool Stream>
RESHARD_TARGET inline void store_f16(Floats a, std::byte* dst) {
  put<Stream>(_mm512_maskz_cvtps_ph(kAll, a.v, _MM_FROUND_TO_NEAREST_INT), dst);
}
/// @pre not NaN
template <bool Stream>
RESHARD_TARGET inline void store_bf16(Floats a, std::byte* dst) {
  const Ints bits = bits_of(a);
  const Ints rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  put<Stream>(_mm512_maskz_cvtepi32_epi16(kAll, (rounded >> 16).v), dst);
}

template <CodeKind Kind, bool Stream>
RESHARD_TARGET inline void store_codes(Ints codes, std::byte* data) {
  if constexpr (code_bits(Kind) == 8) {
    put<Stream>(_mm512_maskz_cvtepi32_epi8(kAll, codes.v), data);
  } else {
    const __m512i pairs = _mm512_or_si512(codes.v, _mm512_maskz_srli_epi64(0xff, codes.v, 28));
    const __m128i bytes = _mm512_maskz_cvtepi64_epi8(0xff, pairs);
    if constexpr (Stream) {
      _mm_stream_si64(reinterpret_cast<long long*>(data), _mm_cvtsi128_si64(bytes));
    } else {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(data), bytes);
    }
  }
}

template <CodeKind Kind>
constexpr std::ptrdiff_t kCodesTogether = Kind == CodeKind::e4m3 ? 32 : 16;

/// Sixteen codes of 4 bits, a byte each.
RESHARD_TARGET inline __m128i nibbles(const std::byte* data) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
  const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
  const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
  return _mm_unpacklo_epi8(low, high);
}

/// kCodesTogether codes.
template <CodeKind Kind>
class Codes;

template <>
class Codes<CodeKind::e4m3> {
 public:
  RESHARD_TARGET explicit Codes(const std::byte* data)
      : wide_(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)))) {}

  RESHARD_TARGET bool any_nan() const {
    const __m512i magnitude = _mm512_and_si512(wide_, _mm512_set1_epi16(0x7f));
    return _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)) != 0;
  }
  /// The numbers from `first` on, 2^8 too small.
  RESHARD_TARGET Floats floats(std::ptrdiff_t first) const {
    const __m512i magnitude =
        _mm512_and_si512(_mm512_slli_epi16(wide_, 7), _mm512_set1_epi16(0x3f80));
    // The sign bit comes from the codes one byte higher, the other bits from the magnitude.
    const __m512i halves = _mm512_ternarylogic_epi32(_mm512_set1_epi16(static_cast<short>(0x8000)),
                                                     _mm512_slli_epi16(wide_, 8), magnitude, 0xca);
    return {_mm512_maskz_cvtph_ps(kAll, first == 0
                                            ? _mm512_maskz_extracti64x4_epi64(0xff, halves, 0)
                                            : _mm512_maskz_extracti64x4_epi64(0xff, halves, 1))};
  }

 private:
  __m512i wide_;
};

template <>
class Codes<CodeKind::e2m1> {
 public:
  RESHARD_TARGET explicit Codes(const std::byte* data) {
    // The code is the upper byte of the half; the lower byte is 0.
    const __m128i table = _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, -128, -72, -68,
                                        -66, -64, -62, -60, -58);
    tops_ = _mm_shuffle_epi8(table, nibbles(data));
  }

  RESHARD_TARGET static bool any_nan() { return false; }
  RESHARD_TARGET Floats floats(std::ptrdiff_t) const {
    return {_mm512_maskz_cvtph_ps(kAll, _mm256_slli_epi16(_mm256_cvtepu8_epi16(tops_), 8))};
  }

 private:
  __m128i tops_;
};

template <CodeKind Kind>
  requires(is_integer(Kind))
class Codes<Kind> {
 public:
  RESHARD_TARGET explicit Codes(const std::byte* data)
      : codes_(code_bits(Kind) == 4 ? nibbles(data)
                                    : _mm_loadu_si128(reinterpret_cast<const __m128i*>(data))) {}

  RESHARD_TARGET static bool any_nan() { return false; }
  RESHARD_TARGET Floats floats(std::ptrdiff_t) const {
    const Ints numbers = Kind == CodeKind::int8
                             ? Ints{_mm512_maskz_cvtepi8_epi32(kAll, codes_)}
                             : Ints{_mm512_maskz_cvtepu8_epi32(kAll, codes_)} - code_offset(Kind);
    return {_mm512_maskz_cvtepi32_ps(kAll, numbers.v)};
  }

 private:
  __m128i codes_;
};

/// The largest magnitude, as bits of the source dtype.
class RawMaximum {
 public:
  static constexpr std::ptrdiff_t kVectorBytes = 64;

  RESHARD_TARGET RawMaximum() : maximum_(_mm512_setzero_si512()) {}

  template <class Source>
  RESHARD_TARGET void add(const std::byte* src) {
    add_bits<Source>(_mm512_loadu_si512(src));
  }

  /// @pre n > 0 is less than the elements of a vector
  template <class Source>
  RESHARD_TARGET void add_some(const std::byte* src, std::ptrdiff_t n) {
    add_bits<Source>(_mm512_maskz_loadu_epi8(~0ULL >> (64 - n * Source::kBytes), src));
  }

  template <class Source>
  RESHARD_TARGET std::uint32_t float_bits() const;

 private:
  template <class Source>
  RESHARD_TARGET void add_bits(__m512i bits) {
    if constexpr (Source::kBytes == 2) {
      const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
      maximum_ = _mm512_max_epu16(maximum_, magnitude);
    } else {
      const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
      maximum_ = _mm512_maskz_max_epu32(kAll, maximum_, magnitude);
    }
  }

  RESHARD_TARGET std::uint32_t raw16() const {
    const __m256i half = _mm256_max_epu16(low(), high());
    const __m128i eight =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    // The minimum of the complements is the complement of the maximum.
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
    return ~static_cast<std::uint32_t>(_mm_cvtsi128_si32(least)) & 0xffffU;
  }

  RESHARD_TARGET std::uint32_t raw32() const {
    const __m256i half = _mm256_max_epu32(low(), high());
    const __m128i four =
        _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    const __m128i one = _mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(one));
  }

  RESHARD_TARGET __m256i low() const { return _mm512_maskz_extracti64x4_epi64(0xff, maximum_, 0); }
  RESHARD_TARGET __m256i high() const { return _mm512_maskz_extracti64x4_epi64(0xff, maximum_, 1); }

  __m512i maximum_;
};

#include "reshard/transform/kernels/quantise_avx512_wide.inc"
#include "reshard/transform/kernels/quantise_kernels.inc"

}  // namespace

const QuantiseKernels& avx512_quantise_kernels() {
  static const QuantiseKernels kKernels = {kernels_of<Bf16>(), kernels_of<F16>(), kernels_of<F32>(),
                                           scales};
  return kKernels;
}

}  // namespace reshard::kernels
#else
namespace reshard::kernels {

const QuantiseKernels& avx512_quantise_kernels() { return portable_quantise_kernels(); }

}  // namespace reshard::kernels
#endif
