// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/kernels/convert_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define RESHARD_TARGET __attribute__((target("avx2,f16c")))

namespace reshard::kernels {
namespace {

/// Sixteen elements at a time: a register of halves.
constexpr std::ptrdiff_t kStep = 16;

struct Floats {
  __m256 low, high;
};

RESHARD_TARGET inline Floats load_floats(const std::byte* src) {
  const auto* at = reinterpret_cast<const float*>(src);
  return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}

RESHARD_TARGET inline void put(std::byte* dst, __m256i bits, bool stream) {
  auto* at = reinterpret_cast<__m256i*>(dst);
  stream ? _mm256_stream_si256(at, bits) : _mm256_storeu_si256(at, bits);
}

RESHARD_TARGET inline __m256i load_halves(const std::byte* src) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
}

RESHARD_TARGET inline __m256i bf16_bits(__m256 values) {
  const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), infinity = _mm256_set1_epi32(0x7f800000);
  const __m256i quiet = _mm256_set1_epi32(0x40), payload = _mm256_set1_epi32(0x7f);
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i top = _mm256_srli_epi32(bits, 16);
  const __m256i even = _mm256_add_epi32(half, _mm256_and_si256(top, one));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, even), 16);
  const __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), infinity);
  const __m256i lost = _mm256_cmpeq_epi32(_mm256_and_si256(top, payload), _mm256_setzero_si256());
  const __m256i kept = _mm256_or_si256(top, _mm256_and_si256(lost, quiet));
  return _mm256_blendv_epi8(rounded, kept, nan);
}

/// The low halves of the places of both, in order.
RESHARD_TARGET inline __m256i packed(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

struct FromBf16 {
  static constexpr auto one = from_bf16;
  RESHARD_TARGET static void step(const std::byte* src, std::byte* dst, bool stream) {
    const __m256i halves = load_halves(src);
    const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(halves));
    const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(halves, 1));
    put(dst, _mm256_slli_epi32(low, 16), stream);
    put(dst + 32, _mm256_slli_epi32(high, 16), stream);
  }
};

struct FromF16 {
  static constexpr auto one = from_f16;
  RESHARD_TARGET static void step(const std::byte* src, std::byte* dst, bool stream) {
    const __m256i halves = load_halves(src);
    const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    put(dst, _mm256_castps_si256(low), stream);
    put(dst + 32, _mm256_castps_si256(high), stream);
  }
};

struct ToBf16 {
  static constexpr auto one = to_bf16;
  RESHARD_TARGET static void step(const std::byte* src, std::byte* dst, bool stream) {
    const Floats values = load_floats(src);
    put(dst, packed(bf16_bits(values.low), bf16_bits(values.high)), stream);
  }
};

struct ToF16 {
  static constexpr auto one = to_f16;
  RESHARD_TARGET static void step(const std::byte* src, std::byte* dst, bool stream) {
    const Floats values = load_floats(src);
    const __m128i low = _mm256_cvtps_ph(values.low, _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(values.high, _MM_FROUND_TO_NEAREST_INT);
    put(dst, _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), stream);
  }
};

template <class Kernel, class From, class To>
RESHARD_TARGET void convert(const std::byte* src, std::byte* dst, std::ptrdiff_t n, bool stream) {
  constexpr auto kFrom = static_cast<std::ptrdiff_t>(sizeof(From)),
                 kTo = static_cast<std::ptrdiff_t>(sizeof(To));
  std::ptrdiff_t i = 0;
  if (stream) {
    // Streaming stores need whole aligned registers, and are fast only in whole cache lines.
    const auto past = static_cast<std::ptrdiff_t>(-reinterpret_cast<std::uintptr_t>(dst) % 64);
    if (past % kTo != 0) {
      stream = false;
    } else {
      i = past / kTo < n ? past / kTo : n;
      convert_each<Kernel::one, From, To>(src, dst, i);
    }
  }
  for (; i + kStep <= n; i += kStep) Kernel::step(src + i * kFrom, dst + i * kTo, stream);
  convert_each<Kernel::one, From, To>(src + i * kFrom, dst + i * kTo, n - i);
}

}  // namespace

bool has_avx2_convert_kernels() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
}

const ConvertKernels& avx2_convert_kernels() {
  static constexpr ConvertKernels kKernels = {
      convert<FromBf16, std::uint16_t, float>, convert<FromF16, std::uint16_t, float>,
      convert<ToBf16, float, std::uint16_t>, convert<ToF16, float, std::uint16_t>};
  return kKernels;
}

}  // namespace reshard::kernels
#else
namespace reshard::kernels {

bool has_avx2_convert_kernels() { return false; }

const ConvertKernels& avx2_convert_kernels() { return portable_convert_kernels(); }

}  // namespace reshard::kernels
#endif
