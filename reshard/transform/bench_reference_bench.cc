// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "reshard/base/hash.h"
#include "reshard/transform/bench_reference_testutil.h"
#include "reshard/transform/copy.h"
#include "reshard/transform/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define RESHARD_TARGET __attribute__((target("avx512f")))
#endif

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& run) {
  const auto begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

#if defined(__x86_64__)
RESHARD_TARGET void stream_vectors(std::byte* dst, const std::byte* src, Index bytes) {
  for (Index at = 0; at < bytes; at += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
}

RESHARD_TARGET std::uint64_t read_vectors(const std::byte* src, Index bytes) {
  __m512i sum[8] = {};
  for (Index at = 0; at < bytes; at += 512)
    for (Index k = 0; k < 8; ++k)
      sum[k] = _mm512_xor_si512(sum[k], _mm512_loadu_si512(src + at + 64 * k));
  for (Index k = 1; k < 8; ++k) sum[0] = _mm512_xor_si512(sum[0], sum[k]);
  std::uint64_t words[8], all = 0;
  _mm512_storeu_si512(words, sum[0]);
  for (const std::uint64_t word : words) all ^= word;
  return all;
}
#endif

}  // namespace

HostBuffer& bench_buffer(const std::string& name, Index bytes) {
  static std::map<std::string, HostBuffer> buffers;
  HostBuffer& buffer = buffers[name];
  if (buffer.size() < bytes) {
    buffer = HostBuffer{};
    auto fresh = HostBuffer::allocate(bytes, {.prefault_threads = 2});
    if (!fresh) {
      std::fprintf(stderr, "%s\n", fresh.error().message.c_str());
      std::exit(1);
    }
    buffer = std::move(*fresh);
    for (Index at = 0; at + 8 <= bytes; at += 8) {
      const std::uint64_t word = mix64(static_cast<std::uint64_t>(at));
      std::memcpy(buffer.data() + at, &word, 8);
    }
  }
  return buffer;
}

void textbook_streaming_copy(std::byte* dst, const std::byte* src, Index bytes) {
#if defined(__x86_64__)
  if (best_simd_level() == SimdLevel::avx512) {
    stream_vectors(dst, src, bytes);
    return copy_fence();
  }
#endif
  std::memcpy(dst, src, static_cast<std::size_t>(bytes));
}

std::uint64_t read_only_pass(const std::byte* src, Index bytes) {
#if defined(__x86_64__)
  if (best_simd_level() == SimdLevel::avx512) return read_vectors(src, bytes);
#endif
  std::uint64_t sum = 0;
  for (Index at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, src + at, 8);
    sum ^= word;
  }
  return sum;
}

void measure_by_turns(benchmark::State& state, const std::vector<Contender>& contenders,
                      std::size_t references) {
  for (const Contender& c : contenders) c.run();
  std::vector<std::vector<double>> rates(contenders.size());
  for (auto _ : state) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const double time = seconds(contenders[i].run);
      rates[i].push_back(static_cast<double>(contenders[i].bytes) / time / 1e9);
      if (i == 0) state.SetIterationTime(time);
    }
  }
  double best = 0;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    std::ranges::sort(rates[i]);
    const double median = rates[i][rates[i].size() / 2];
    state.counters[contenders[i].name] = median;
    state.counters[contenders[i].name + "_min"] = rates[i].front();
    if (i > 0 && i <= references) best = std::max(best, median);
  }
  if (best > 0) state.counters["ratio"] = state.counters[contenders[0].name] / best;
}

}  // namespace reshard
