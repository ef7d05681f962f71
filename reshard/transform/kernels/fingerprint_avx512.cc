// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/check.h"
#include "reshard/transform/kernels/fingerprint_kernels.h"
#include "reshard/transform/kernels/unroll.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

#define RESHARD_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi2")))

namespace reshard::kernels {
namespace {

constexpr std::size_t kRows = 4;

struct Vector {
  static constexpr std::size_t kBytes = 64;
  __m512i v;

  RESHARD_TARGET static Vector zero() { return {_mm512_setzero_si512()}; }
  RESHARD_TARGET static Vector load(const void* p) {
    Vector a{_mm512_loadu_si512(p)};
    // Keeps it a single load. Folded into each of its three uses, it is slower by a fifth.
    asm("" : "+v"(a.v));
    return a;
  }
  /// Bytes [from, to), which begin at `p`; all others 0.
  RESHARD_TARGET static Vector load_some(const std::byte* p, std::size_t from, std::size_t to) {
    const __mmask64 mask = _bzhi_u64(~0ULL, static_cast<unsigned>(to)) & (~0ULL << from);
    const auto shifted = reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) - from);
    return {_mm512_maskz_loadu_epi8(mask, shifted)};
  }
};

// Masked intrinsics with a full mask: g++ 12 warns that the plain ones read uninitialised values.
RESHARD_TARGET inline Vector odd_words(Vector a) {
  return {_mm512_maskz_srli_epi64(0xff, a.v, 32)};
}
RESHARD_TARGET inline Vector plus(Vector a, Vector b) { return {_mm512_add_epi64(a.v, b.v)}; }
/// The products of the low halves of the 64-bit lanes.
RESHARD_TARGET inline Vector multiply_words(Vector a, Vector b) {
  return {_mm512_maskz_mul_epu32(0xff, a.v, b.v)};
}
RESHARD_TARGET inline Vector multiply(Vector a, std::uint64_t b) {
  return {_mm512_mullo_epi64(a.v, _mm512_set1_epi64(static_cast<long long>(b)))};
}
RESHARD_TARGET inline std::uint64_t sum_of(Vector a) {
  std::uint64_t places[8], sum = 0;
  _mm512_storeu_si512(places, a.v);
  for (const std::uint64_t place : places) sum += place;
  return sum;
}

#include "reshard/transform/kernels/fingerprint_kernels.inc"

}  // namespace

void fingerprint_avx512(const PartBlock& block, std::array<std::uint64_t, 2>& sum) {
  add_block(block, sum);
}

}  // namespace reshard::kernels
#else
void reshard::kernels::fingerprint_avx512(const PartBlock&, std::array<std::uint64_t, 2>&) {
  detail::check_failed("x86-64", __FILE__, __LINE__);
}
#endif
