// SPDX-License-Identifier: Apache-2.0
#include "bench/common/ceiling.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define RESHARD_BENCH_WIDE __attribute__((target("avx512f")))
#endif

namespace reshard::bench {
namespace {

constexpr Index kVector = 64, kPage = 4096;
constexpr int kStreams = 8;

std::uint64_t read_words(const std::byte* src, Index bytes) {
  std::uint64_t sum[4] = {};
  Index at = 0;
  for (; at + 32 <= bytes; at += 32) {
    std::uint64_t words[4];
    std::memcpy(words, src + at, 32);
    for (int k = 0; k < 4; ++k) sum[k] ^= words[k];
  }
  std::uint64_t rest[4] = {};
  std::memcpy(rest, src + at, static_cast<std::size_t>(bytes - at));
  for (int k = 0; k < 4; ++k) sum[k] ^= rest[k];
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

#if defined(__x86_64__)
bool wide() { return __builtin_cpu_supports("avx512f") != 0; }

/// Reads eight vectors `stride` bytes apart, then the eight that are `step` bytes further on.
RESHARD_BENCH_WIDE __m512i read_block(__m512i sum, const std::byte* src, Index stride, Index step,
                                      Index count) {
  __m512i sums[kStreams] = {sum};
  for (Index i = 0; i < count; ++i)
    for (Index k = 0; k < kStreams; ++k)
      sums[k] = _mm512_xor_si512(sums[k], _mm512_loadu_si512(src + i * step + k * stride));
  for (int k = 1; k < kStreams; ++k) sums[0] = _mm512_xor_si512(sums[0], sums[k]);
  return sums[0];
}

RESHARD_BENCH_WIDE std::uint64_t folded(__m512i sum) {
  std::uint64_t words[8];
  _mm512_storeu_si512(words, sum);
  std::uint64_t all = 0;
  for (const std::uint64_t word : words) all ^= word;
  return all;
}

RESHARD_BENCH_WIDE std::uint64_t read_wide(const std::byte* src, Index bytes, bool streams) {
  const Index block = kStreams * kPage, blocks = bytes / block;
  __m512i sum = _mm512_setzero_si512();
  for (Index b = 0; b < blocks; ++b)
    sum = streams ? read_block(sum, src + b * block, kPage, kVector, kPage / kVector)
                  : read_block(sum, src + b * block, kVector, kStreams * kVector, kPage / kVector);
  return folded(sum) ^ read_words(src + blocks * block, bytes - blocks * block);
}
#endif

}  // namespace

std::uint64_t read_in_order(const std::byte* src, Index bytes) {
#if defined(__x86_64__)
  if (wide()) return read_wide(src, bytes, false);
#endif
  return read_words(src, bytes);
}

std::uint64_t read_eight_streams(const std::byte* src, Index bytes) {
#if defined(__x86_64__)
  if (wide()) return read_wide(src, bytes, true);
#endif
  return read_words(src, bytes);
}

}  // namespace reshard::bench
