// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/convert_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define RESHARD_TARGET __attribute__((target("avx2,f16c")))

namespace reshard::detail {
namespace {

constexpr int kLanes = 8;

RESHARD_TARGET inline __m128i load_halves(const std::uint16_t* src) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
}

RESHARD_TARGET inline void store_halves(std::uint16_t* dst, __m128i halves) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), halves);
}

RESHARD_TARGET void from_bf16_block(const std::uint16_t* src, float* dst, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(src + i)), 16);
    _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(wide));
  }
  for (; i < n; ++i) dst[i] = from_bf16(src[i]);
}

RESHARD_TARGET void from_f16_block(const std::uint16_t* src, float* dst, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(load_halves(src + i)));
  for (; i < n; ++i) dst[i] = from_f16(src[i]);
}

RESHARD_TARGET void to_bf16_block(const float* src, std::uint16_t* dst, int n) {
  const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), infinity = _mm256_set1_epi32(0x7f800000);
  const __m256i quiet = _mm256_set1_epi32(0x40), payload = _mm256_set1_epi32(0x7f);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(src + i));
    const __m256i top = _mm256_srli_epi32(bits, 16);
    const __m256i even = _mm256_add_epi32(half, _mm256_and_si256(top, one));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, even), 16);
    const __m256i nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), infinity);
    const __m256i lost = _mm256_cmpeq_epi32(_mm256_and_si256(top, payload), _mm256_setzero_si256());
    const __m256i kept = _mm256_or_si256(top, _mm256_and_si256(lost, quiet));
    const __m256i result = _mm256_blendv_epi8(rounded, kept, nan);
    const __m256i packed = _mm256_packus_epi32(result, result);
    store_halves(dst + i, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  for (; i < n; ++i) dst[i] = to_bf16(src[i]);
}

RESHARD_TARGET void to_f16_block(const float* src, std::uint16_t* dst, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store_halves(dst + i, _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) dst[i] = to_f16(src[i]);
}

}  // namespace

bool has_avx2_convert_kernels() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
}

const ConvertKernels& avx2_convert_kernels() {
  static constexpr ConvertKernels kKernels = {from_bf16_block, from_f16_block, to_bf16_block,
                                              to_f16_block};
  return kKernels;
}

}  // namespace reshard::detail
#else
namespace reshard::detail {

bool has_avx2_convert_kernels() { return false; }

const ConvertKernels& avx2_convert_kernels() { return portable_convert_kernels(); }

}  // namespace reshard::detail
#endif
