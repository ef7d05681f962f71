// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/kernels/quantise_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/kernels/unroll.h"

#define RESHARD_TARGET __attribute__((target("avx2,f16c")))

namespace reshard::kernels {
namespace {

constexpr std::ptrdiff_t kLanes = 8;

struct Floats {
  __m256 v;
};

struct Ints {
  __m256i v;
};

RESHARD_TARGET inline Ints all(std::uint32_t word) {
  return {_mm256_set1_epi32(static_cast<int>(word))};
}
RESHARD_TARGET inline Floats broadcast(float value) { return {_mm256_set1_ps(value)}; }
RESHARD_TARGET inline Ints bits_of(Floats a) { return {_mm256_castps_si256(a.v)}; }
RESHARD_TARGET inline Floats floats_of(Ints a) { return {_mm256_castsi256_ps(a.v)}; }
RESHARD_TARGET inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
RESHARD_TARGET inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
RESHARD_TARGET inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
RESHARD_TARGET inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.v, b.v)}; }
RESHARD_TARGET inline Ints operator-(Ints a, Ints b) { return {_mm256_sub_epi32(a.v, b.v)}; }
RESHARD_TARGET inline Ints operator|(Ints a, Ints b) { return {_mm256_or_si256(a.v, b.v)}; }
RESHARD_TARGET inline Ints operator&(Ints a, std::uint32_t b) {
  return {_mm256_and_si256(a.v, all(b).v)};
}
RESHARD_TARGET inline Ints operator+(Ints a, std::uint32_t b) { return a + all(b); }
RESHARD_TARGET inline Ints operator-(Ints a, std::uint32_t b) { return a - all(b); }
RESHARD_TARGET inline Ints operator>>(Ints a, int places) {
  return {_mm256_srli_epi32(a.v, places)};
}
RESHARD_TARGET inline Ints smaller(Ints a, std::uint32_t b) {
  return {_mm256_min_epu32(a.v, all(b).v)};
}
RESHARD_TARGET inline Ints larger(Ints a, std::uint32_t b) {
  return {_mm256_max_epu32(a.v, all(b).v)};
}
RESHARD_TARGET inline Ints operator<<(Ints a, int places) {
  return {_mm256_slli_epi32(a.v, places)};
}
/// The bits in `mask` from a, the others from b.
RESHARD_TARGET inline Ints picked(std::uint32_t mask, Ints a, Ints b) {
  return (a & mask) | (b & ~mask);
}
RESHARD_TARGET inline bool all_below(Ints a, std::uint32_t limit) {
  const __m256i below = _mm256_cmpeq_epi32(smaller(a, limit - 1).v, a.v);
  return _mm256_movemask_epi8(below) == -1;
}
RESHARD_TARGET inline Ints load_words(const void* src) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(src))};
}
RESHARD_TARGET inline void store_words(Ints a, std::uint32_t* dst) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), a.v);
}

RESHARD_TARGET inline __m128i load_halves(const std::byte* src) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
}
RESHARD_TARGET inline Floats load_f32(const std::byte* src) {
  return {_mm256_loadu_ps(reinterpret_cast<const float*>(src))};
}
RESHARD_TARGET inline Floats load_bf16(const std::byte* src) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(src)), 16))};
}
RESHARD_TARGET inline Floats load_f16(const std::byte* src) {
  return {_mm256_cvtph_ps(load_halves(src))};
}

/// Stores whole registers, past the caches or not.
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
  put<Stream>(_mm256_castps_si256(a.v), dst);
}
template <bool Stream>
RESHARD_TARGET inline void store_f16(Floats a, std::byte* dst) {
  put<Stream>(_mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT), dst);
}
/// @pre not NaN
template <bool Stream>
RESHARD_TARGET inline void store_bf16(Floats a, std::byte* dst) {
  const Ints bits = bits_of(a);
  const __m256i halves = ((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16).v;
  put<Stream>(_mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)),
              dst);
}

template <CodeKind Kind, bool Stream>
RESHARD_TARGET inline void store_codes(Ints codes, std::byte* data) {
  const __m256i clean = (codes & 0xffU).v;
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(clean), _mm256_extracti128_si256(clean, 1));
  if constexpr (code_bits(Kind) == 8) {
    const __m128i bytes = _mm_packus_epi16(halves, halves);
    if constexpr (Stream) {
      _mm_stream_si64(reinterpret_cast<long long*>(data), _mm_cvtsi128_si64(bytes));
    } else {
      _mm_storel_epi64(reinterpret_cast<__m128i*>(data), bytes);
    }
  } else {
    const __m128i pairs = _mm_or_si128(halves, _mm_srli_epi32(halves, 12));
    const __m128i bytes = _mm_shuffle_epi8(
        pairs, _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    if constexpr (Stream) {
      _mm_stream_si32(reinterpret_cast<int*>(data), _mm_cvtsi128_si32(bytes));
    } else {
      _mm_storeu_si32(data, bytes);
    }
  }
}

template <CodeKind Kind>
constexpr std::ptrdiff_t kCodesTogether = 16;

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
      : wide_(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)))) {}

  RESHARD_TARGET bool any_nan() const {
    const __m256i magnitude = _mm256_and_si256(wide_, _mm256_set1_epi16(0x7f));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f))) != 0;
  }
  /// The numbers from `first` on, 2^8 too small.
  RESHARD_TARGET Floats floats(std::ptrdiff_t first) const {
    const __m256i magnitude =
        _mm256_and_si256(_mm256_slli_epi16(wide_, 7), _mm256_set1_epi16(0x3f80));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(wide_, 8),
                                          _mm256_set1_epi16(static_cast<short>(0x8000)));
    const __m256i halves = _mm256_or_si256(magnitude, sign);
    return {_mm256_cvtph_ps(first == 0 ? _mm256_castsi256_si128(halves)
                                       : _mm256_extracti128_si256(halves, 1))};
  }

 private:
  __m256i wide_;
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
  RESHARD_TARGET Floats floats(std::ptrdiff_t first) const {
    const __m128i zero = _mm_setzero_si128();
    return {_mm256_cvtph_ps(first == 0 ? _mm_unpacklo_epi8(zero, tops_)
                                       : _mm_unpackhi_epi8(zero, tops_))};
  }

 private:
  __m128i tops_;
};

/// Eight numbers of codes in bytes.
template <CodeKind Kind>
RESHARD_TARGET inline Floats integers(__m128i codes) {
  const Ints numbers = Kind == CodeKind::int8
                           ? Ints{_mm256_cvtepi8_epi32(codes)}
                           : Ints{_mm256_cvtepu8_epi32(codes)} - code_offset(Kind);
  return {_mm256_cvtepi32_ps(numbers.v)};
}

template <CodeKind Kind>
  requires(is_integer(Kind))
class Codes<Kind> {
 public:
  RESHARD_TARGET explicit Codes(const std::byte* data)
      : codes_(code_bits(Kind) == 4 ? nibbles(data)
                                    : _mm_loadu_si128(reinterpret_cast<const __m128i*>(data))) {}

  RESHARD_TARGET static bool any_nan() { return false; }
  RESHARD_TARGET Floats floats(std::ptrdiff_t first) const {
    return integers<Kind>(first == 0 ? codes_ : _mm_srli_si128(codes_, 8));
  }

 private:
  __m128i codes_;
};

/// The largest magnitude, as bits of the source dtype.
class RawMaximum {
 public:
  static constexpr std::ptrdiff_t kVectorBytes = 32;

  RESHARD_TARGET RawMaximum() : maximum_(_mm256_setzero_si256()) {}

  template <class Source>
  RESHARD_TARGET void add(const std::byte* src) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    if constexpr (Source::kBytes == 2) {
      const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
      maximum_ = _mm256_max_epu16(maximum_, magnitude);
    } else {
      const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
      maximum_ = _mm256_max_epu32(maximum_, magnitude);
    }
  }

  /// @pre n > 0 is less than the elements of a vector
  template <class Source>
  RESHARD_TARGET void add_some(const std::byte* src, std::ptrdiff_t n) {
    alignas(32) std::byte padded[kVectorBytes] = {};
    std::memcpy(padded, src, static_cast<std::size_t>(n * Source::kBytes));
    add<Source>(padded);
  }

  template <class Source>
  RESHARD_TARGET std::uint32_t float_bits() const;

 private:
  RESHARD_TARGET std::uint32_t raw16() const {
    const __m128i eight =
        _mm_max_epu16(_mm256_castsi256_si128(maximum_), _mm256_extracti128_si256(maximum_, 1));
    // The minimum of the complements is the complement of the maximum.
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
    return ~static_cast<std::uint32_t>(_mm_cvtsi128_si32(least)) & 0xffffU;
  }

  RESHARD_TARGET std::uint32_t raw32() const {
    const __m128i four =
        _mm_max_epu32(_mm256_castsi256_si128(maximum_), _mm256_extracti128_si256(maximum_, 1));
    const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    const __m128i one = _mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(one));
  }

  __m256i maximum_;
};

/// With AVX2 nothing is faster than block by block.
template <class Source>
inline std::ptrdiff_t several_amaxes(const std::byte*, std::ptrdiff_t, std::ptrdiff_t,
                                     std::uint32_t*) {
  return 0;
}

/// AVX2 lacks variable shifts of 16-bit lanes.
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

bool has_avx2_quantise_kernels() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
}

const QuantiseKernels& avx2_quantise_kernels() {
  static const QuantiseKernels kKernels = {kernels_of<Bf16>(), kernels_of<F16>(), kernels_of<F32>(),
                                           scales};
  return kKernels;
}

}  // namespace reshard::kernels
#else
namespace reshard::kernels {

bool has_avx2_quantise_kernels() { return false; }

const QuantiseKernels& avx2_quantise_kernels() { return portable_quantise_kernels(); }

}  // namespace reshard::kernels
#endif
