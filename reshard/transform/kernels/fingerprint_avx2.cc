// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/check.h"
#include "reshard/transform/kernels/fingerprint_kernels.h"
#include "reshard/transform/kernels/unroll.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define RESHARD_TARGET __attribute__((target("avx2")))

namespace reshard::kernels {
namespace {

constexpr std::size_t kRows = 4;

struct Vector {
  static constexpr std::size_t kBytes = 32;
  __m256i v;

  RESHARD_TARGET static Vector zero() { return {_mm256_setzero_si256()}; }
  RESHARD_TARGET static Vector load(const void* p) {
    Vector a{_mm256_loadu_si256(static_cast<const __m256i*>(p))};
    // Keeps it a single load, as in the AVX-512 kernel.
    asm("" : "+x"(a.v));
    return a;
  }
  /// Bytes [from, to), which begin at `p`; all others 0.
  RESHARD_TARGET static Vector load_some(const std::byte* p, std::size_t from, std::size_t to) {
    alignas(32) std::byte bytes[kBytes] = {};
    std::memcpy(bytes + from, p, to - from);
    return load(bytes);
  }
};

RESHARD_TARGET inline Vector odd_words(Vector a) { return {_mm256_srli_epi64(a.v, 32)}; }
RESHARD_TARGET inline Vector plus(Vector a, Vector b) { return {_mm256_add_epi64(a.v, b.v)}; }
/// The products of the low halves of the 64-bit lanes.
RESHARD_TARGET inline Vector multiply_words(Vector a, Vector b) {
  return {_mm256_mul_epu32(a.v, b.v)};
}
RESHARD_TARGET inline Vector multiply(Vector a, std::uint64_t b) {
  const __m256i low = _mm256_set1_epi64x(static_cast<long long>(b));
  const __m256i high = _mm256_set1_epi64x(static_cast<long long>(b >> 32));
  const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(a.v, high),
                                         _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), low));
  return {_mm256_add_epi64(_mm256_mul_epu32(a.v, low), _mm256_slli_epi64(cross, 32))};
}
RESHARD_TARGET inline std::uint64_t sum_of(Vector a) {
  std::uint64_t places[4], sum = 0;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(places), a.v);
  for (const std::uint64_t place : places) sum += place;
  return sum;
}

#include "reshard/transform/kernels/fingerprint_kernels.inc"

}  // namespace

void fingerprint_avx2(const PartBlock& block, std::array<std::uint64_t, 2>& sum) {
  add_block(block, sum);
}

}  // namespace reshard::kernels
#else
void reshard::kernels::fingerprint_avx2(const PartBlock&, std::array<std::uint64_t, 2>&) {
  detail::check_failed("x86-64", __FILE__, __LINE__);
}
#endif
