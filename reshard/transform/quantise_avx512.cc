// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/quantise_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <bit>

#include "reshard/transform/convert_kernels.h"
#include "reshard/transform/unroll.h"

#define RESHARD_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

namespace reshard::detail {
namespace {

constexpr std::ptrdiff_t kLanes = 16;
/// All lanes. The forms with a mask: g++ 12 warns that the others read something uninitialised.
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
/// The bits of `mask` from a, the others from b.
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

/// Stores of whole registers, past the caches or not.
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

template <SmallFloat Kind, bool Stream>
RESHARD_TARGET inline void store_codes(Ints codes, std::byte* data) {
  if constexpr (Kind == SmallFloat::e4m3) {
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

/// E4M3's fields in a half are a number 2^8 smaller, subnormal or not.
template <SmallFloat Kind>
constexpr float kTooSmall = Kind == SmallFloat::e4m3 ? 256.0F : 1.0F;

template <SmallFloat Kind>
constexpr std::ptrdiff_t kCodesTogether = Kind == SmallFloat::e4m3 ? 32 : 16;

/// kCodesTogether codes.
template <SmallFloat Kind>
class Codes;

template <>
class Codes<SmallFloat::e4m3> {
 public:
  RESHARD_TARGET explicit Codes(const std::byte* data)
      : wide_(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)))) {}

  RESHARD_TARGET bool any_nan() const {
    const __m512i magnitude = _mm512_and_si512(wide_, _mm512_set1_epi16(0x7f));
    return _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f)) != 0;
  }
  /// The numbers, 2^8 smaller, from `first` on.
  RESHARD_TARGET Floats floats(std::ptrdiff_t first) const {
    const __m512i magnitude =
        _mm512_and_si512(_mm512_slli_epi16(wide_, 7), _mm512_set1_epi16(0x3f80));
    // The sign's bit from the codes a byte higher, the others from the magnitude.
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
class Codes<SmallFloat::e2m1> {
 public:
  RESHARD_TARGET explicit Codes(const std::byte* data) {
    // The upper byte of the half that has the value; the lower one is 0.
    const __m128i table = _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, -128, -72, -68,
                                        -66, -64, -62, -60, -58);
    const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
    const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
    tops_ = _mm_shuffle_epi8(table, _mm_unpacklo_epi8(low, high));
  }

  RESHARD_TARGET static bool any_nan() { return false; }
  RESHARD_TARGET Floats floats(std::ptrdiff_t) const {
    return {_mm512_maskz_cvtph_ps(kAll, _mm256_slli_epi16(_mm256_cvtepu8_epi16(tops_), 8))};
  }

 private:
  __m128i tops_;
};

/// The largest magnitude, in the bits of the source.
class RawMaximum {
 public:
  static constexpr std::ptrdiff_t kVectorBytes = 64;

  RESHARD_TARGET RawMaximum() : maximum_(_mm512_setzero_si512()) {}

  template <class Source>
  RESHARD_TARGET void add(const std::byte* src) {
    add_bits<Source>(_mm512_loadu_si512(src));
  }

  /// @pre 0 < n, and fewer than a vector has
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
    // The least of the complements is that of the largest.
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

/// The larger magnitudes of two vectors, each folded once: a's in the lower half, b's in the upper.
RESHARD_TARGET inline __m512i folded_halves(__m512i a, __m512i b) {
  return _mm512_max_epu16(_mm512_maskz_shuffle_i64x2(0xff, a, b, 0x44),
                          _mm512_maskz_shuffle_i64x2(0xff, a, b, 0xee));
}
RESHARD_TARGET inline __m512i folded_quarters(__m512i a, __m512i b) {
  return _mm512_max_epu16(_mm512_maskz_shuffle_i64x2(0xff, a, b, 0x88),
                          _mm512_maskz_shuffle_i64x2(0xff, a, b, 0xdd));
}
RESHARD_TARGET inline __m512i folded_eighths(__m512i a, __m512i b) {
  return _mm512_max_epu16(_mm512_maskz_unpacklo_epi64(0xff, a, b),
                          _mm512_maskz_unpackhi_epi64(0xff, a, b));
}

/// The largest magnitudes of eight blocks of 32 or 16 numbers of 16 bits, as 32-bit words.
template <int Block>
RESHARD_TARGET inline __m256i eight_maxima(const std::byte* src) {
  const auto magnitudes = [src](int vector) RESHARD_TARGET {
    return _mm512_and_si512(_mm512_loadu_si512(src + 64 * vector), _mm512_set1_epi16(0x7fff));
  };
  // Two blocks, a half for each.
  const auto pair = [&](int i) RESHARD_TARGET {
    return Block == 32 ? folded_halves(magnitudes(2 * i), magnitudes(2 * i + 1)) : magnitudes(i);
  };
  // Blocks 0, 4, 1, 5, ... in 64 bits each.
  const __m512i four =
      folded_eighths(folded_quarters(pair(0), pair(1)), folded_quarters(pair(2), pair(3)));
  const __m512i two = _mm512_max_epu16(four, _mm512_maskz_srli_epi64(0xff, four, 32));
  const __m512i one = _mm512_max_epu16(two, _mm512_maskz_srli_epi64(0xff, two, 16));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i words = _mm512_maskz_permutexvar_epi32(kAll, order, one);
  return _mm256_and_si256(_mm512_maskz_extracti64x4_epi64(0xff, words, 0),
                          _mm256_set1_epi32(0xffff));
}

/// Blocks of 32 and 16, eight at a time. @return the elements that are done
template <class Source>
RESHARD_TARGET inline std::ptrdiff_t several_amaxes(const std::byte* src, std::ptrdiff_t n,
                                                    std::ptrdiff_t block, std::uint32_t* maxima) {
  constexpr std::ptrdiff_t kTogether = 8;
  if (Source::kBytes != 2 || (block != 32 && block != 16)) return 0;
  std::ptrdiff_t i = 0;
  for (; i + kTogether * block <= n; i += kTogether * block, maxima += kTogether) {
    const std::byte* const from = src + i * Source::kBytes;
    const __m256i words = block == 32 ? eight_maxima<32>(from) : eight_maxima<16>(from);
    const __m256i bits =
        Source::kIsBf16
            ? _mm256_slli_epi32(words, 16)
            : _mm256_castps_si256(_mm256_maskz_cvtph_ps(0xff, _mm256_cvtepi32_epi16(words)));
    auto* const at = reinterpret_cast<__m256i*>(maxima);
    _mm256_storeu_si256(at, _mm256_max_epu32(_mm256_loadu_si256(at), bits));
  }
  return i;
}

/// For d bits to drop, half of the last place that is kept, less one. More than 16 leave nothing.
constexpr std::array<std::uint16_t, 32> kHalves = [] {
  std::array<std::uint16_t, 32> halves{};
  for (unsigned d = 1; d <= 16; ++d) halves[d] = static_cast<std::uint16_t>((1U << (d - 1)) - 1);
  return halves;
}();

/// The codes of bf16 numbers times a power of two, in 16-bit places: with its exponent moved by
/// that power, which is `base` lower, a number has the fields of E4M3 with four more bits of
/// mantissa.
RESHARD_TARGET RESHARD_INLINE __m512i moved_codes(__m512i number, __m512i base, __m512i halves) {
  const __m512i one = _mm512_set1_epi16(1), four = _mm512_set1_epi16(4);
  const __m512i magnitude = _mm512_and_si512(number, _mm512_set1_epi16(0x7fff));
  const __m512i fields = _mm512_sub_epi16(magnitude, base);
  // The mantissa with its leading bit, which is what subnormal codes count.
  const __m512i mantissa =
      _mm512_ternarylogic_epi32(magnitude, _mm512_set1_epi16(0x7f), _mm512_set1_epi16(0x80), 0xea);
  const __m512i wide = _mm512_max_epi16(fields, mantissa);
  const __m512i exponent = _mm512_srai_epi16(fields, 7);
  const __m512i drop = _mm512_max_epi16(_mm512_sub_epi16(_mm512_set1_epi16(5), exponent), four);
  const __m512i odd = _mm512_and_si512(_mm512_srlv_epi16(wide, drop), one);
  const __m512i half = _mm512_maskz_permutexvar_epi16(~0U, drop, halves);
  const __m512i sum = _mm512_add_epi16(_mm512_add_epi16(wide, half), odd);
  const __m512i code = _mm512_min_epu16(_mm512_srlv_epi16(sum, drop), _mm512_set1_epi16(0x7e));
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x80), _mm512_maskz_srli_epi16(~0U, number, 8),
                                   code, 0xca);
}

/// True where n floats are powers of two that can be added to exponents: under larger ones
/// subnormal numbers would count.
RESHARD_TARGET inline bool move_exponents(const float* by, std::ptrdiff_t n) {
  constexpr std::uint32_t kFrom = 27U << 23, kTo = 227U << 23;
  for (std::ptrdiff_t b = 0; b < n; b += kLanes) {
    const auto lanes = static_cast<__mmask16>(n - b < kLanes ? (1U << (n - b)) - 1 : 0xffffU);
    const __m512i bits = _mm512_maskz_loadu_epi32(lanes, by + b);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, all(0x7fffffU).v);
    const __mmask16 inside = _mm512_cmplt_epu32_mask((Ints{bits} - kFrom).v, all(kTo - kFrom).v);
    if (odd != 0 || (inside & lanes) != lanes) return false;
  }
  return true;
}

/// Blocks of bf16 of whole vectors whose scales are all powers of two.
/// @return the elements that are done
template <class Source, SmallFloat Kind, bool Stream>
RESHARD_TARGET inline std::ptrdiff_t shift_exponents(const std::byte* src, std::byte* data,
                                                     std::ptrdiff_t n, std::ptrdiff_t block,
                                                     const float* by, const std::byte* next) {
  if (!Source::kIsBf16 || Kind != SmallFloat::e4m3 || block % 32 != 0) return 0;
  if (!move_exponents(by, n / block)) return 0;
  const __m512i halves = _mm512_loadu_si512(kHalves.data());
  std::ptrdiff_t i = 0;
  for (; i + block <= n; ++by) {
    // The upper half of the float has its exponent where bf16 has it.
    const auto power = static_cast<short>(float_bits(*by) >> 16);
    const __m512i base = _mm512_sub_epi16(_mm512_set1_epi16(247 * 128), _mm512_set1_epi16(power));
    for (const std::ptrdiff_t end = i + block; i < end; i += 32) {
      __builtin_prefetch(next + 2 * i);
      const __m512i codes = moved_codes(_mm512_loadu_si512(src + 2 * i), base, halves);
      put<Stream>(_mm512_maskz_cvtepi16_epi8(~0U, codes), data + i);
    }
  }
  return i;
}

template <SmallFloat Kind, bool Saturates>
RESHARD_TARGET RESHARD_INLINE Ints magnitude_code(Ints bits);

/// The words of two vectors that unpacking has made of one, in its order.
constexpr std::array<std::uint16_t, 32> kRepacked = [] {
  std::array<std::uint16_t, 32> from{};
  for (unsigned i = 0; i < 32; ++i)
    from[i] = static_cast<std::uint16_t>(i % 8 / 4 * 32 + (i / 8 * 4 + i % 4) * 2);
  return from;
}();

/// Codes with their signs, in 16-bit places with rubbish above.
template <SmallFloat Kind>
RESHARD_TARGET RESHARD_INLINE __m512i signed_codes(__m512i number, __m512i codes) {
  constexpr auto kSign = static_cast<short>(traits(Kind).sign_code);
  constexpr unsigned kShift = Kind == SmallFloat::e4m3 ? 8 : 12;
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(kSign),
                                   _mm512_maskz_srli_epi16(~0U, number, kShift), codes, 0xca);
}

template <SmallFloat Kind, bool Stream>
RESHARD_TARGET RESHARD_INLINE void put_codes(__m512i codes, std::byte* data) {
  if constexpr (Kind == SmallFloat::e4m3) {
    put<Stream>(_mm512_maskz_cvtepi16_epi8(~0U, codes), data);
  } else {
    const __m512i pairs = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0xf), codes,
                                                    _mm512_maskz_srli_epi32(kAll, codes, 12), 0xca);
    const __m128i bytes = _mm512_maskz_cvtepi32_epi8(kAll, pairs);
    if constexpr (Stream) {
      // Blocks need not begin at multiples of 16 bytes.
      auto* const at = reinterpret_cast<long long*>(data);
      _mm_stream_si64(at, _mm_cvtsi128_si64(bytes));
      _mm_stream_si64(at + 1, _mm_extract_epi64(bytes, 1));
    } else {
      put<false>(bytes, data);
    }
  }
}

/// Codes of bf16, 32 at a time: signs stay in their 16 bits, and only magnitudes are made floats.
/// @return the elements that are done
template <class Source, SmallFloat Kind, bool Divides, bool Stream>
RESHARD_TARGET RESHARD_INLINE std::ptrdiff_t encode_wide(const std::byte* src, std::byte* data,
                                                         std::ptrdiff_t n, Floats by,
                                                         const std::byte* next) {
  if (!Source::kIsBf16) return 0;
  const __m512i repacked = _mm512_loadu_si512(kRepacked.data()), zero = _mm512_setzero_si512();
  std::ptrdiff_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __builtin_prefetch(next + 2 * i);
    const __m512i number = _mm512_loadu_si512(src + 2 * i);
    const __m512i magnitude = _mm512_and_si512(number, _mm512_set1_epi16(0x7fff));
    const Floats low = floats_of({_mm512_unpacklo_epi16(zero, magnitude)});
    const Floats high = floats_of({_mm512_unpackhi_epi16(zero, magnitude)});
    const Ints low_code = magnitude_code<Kind, !Divides>(bits_of(Divides ? low / by : low * by));
    const Ints high_code = magnitude_code<Kind, !Divides>(bits_of(Divides ? high / by : high * by));
    const __m512i codes = _mm512_permutex2var_epi16(low_code.v, repacked, high_code.v);
    put_codes<Kind, Stream>(signed_codes<Kind>(number, codes),
                            data + (Kind == SmallFloat::e4m3 ? i : i / 2));
  }
  return i;
}

#include "reshard/transform/quantise_kernels.inc"

template <>
RESHARD_TARGET inline std::uint32_t RawMaximum::float_bits<Bf16>() const {
  return raw16() << 16;
}
template <>
RESHARD_TARGET inline std::uint32_t RawMaximum::float_bits<F16>() const {
  return std::bit_cast<std::uint32_t>(from_f16(static_cast<std::uint16_t>(raw16())));
}
template <>
RESHARD_TARGET inline std::uint32_t RawMaximum::float_bits<F32>() const {
  return raw32();
}

}  // namespace

const QuantiseKernels& avx512_quantise_kernels() {
  static constexpr QuantiseKernels kKernels = {kernels_of<Bf16>(), kernels_of<F16>(),
                                               kernels_of<F32>(), scales};
  return kKernels;
}

}  // namespace reshard::detail
#else
namespace reshard::detail {

const QuantiseKernels& avx512_quantise_kernels() { return portable_quantise_kernels(); }

}  // namespace reshard::detail
#endif
