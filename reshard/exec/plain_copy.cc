// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/plain_copy.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "reshard/transform/copy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define RESHARD_PLAIN_WIDE __attribute__((target("avx512f")))
#endif

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Index kPage = 4096;
/// Bytes that a thread copies at a time, so that a slow thread takes fewer chunks. Small enough
/// that memcpy still writes through the caches of machines with large ones.
constexpr Index kChunk = Index{1} << 20;
constexpr Index kMaxCopied = Index{512} << 20, kLeastOfRank = Index{8} << 20;
/// Copies in each way: as many as fit into half a second, within these bounds.
constexpr int kLeastRounds = 3, kMaxRounds = 100;
constexpr double kEnoughSeconds = 0.5;
/// Copies in each way in a group, where every round needs two barriers.
constexpr int kGroupRounds = 5;

void libc_copy(std::byte* dst, const std::byte* src, Index bytes) {
  if (bytes > 0) std::memcpy(dst, src, static_cast<std::size_t>(bytes));
}

#if defined(__x86_64__)
constexpr Index kVector = 64;

RESHARD_PLAIN_WIDE void stream_wide(std::byte* dst, const std::byte* src, Index bytes) {
  for (Index at = 0; at < bytes; at += kVector)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
  _mm_sfence();
}

void stream_narrow(std::byte* dst, const std::byte* src, Index bytes) {
  for (Index at = 0; at < bytes; at += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + at)));
  _mm_sfence();
}

void streaming_copy(std::byte* dst, const std::byte* src, Index bytes) {
  const auto misaligned = static_cast<Index>(reinterpret_cast<std::uintptr_t>(dst) % kVector);
  const Index head = misaligned == 0 ? 0 : std::min(bytes, kVector - misaligned);
  libc_copy(dst, src, head);
  const Index body = (bytes - head) / kVector * kVector;
  const bool wide = __builtin_cpu_supports("avx512f") != 0;
  (wide ? stream_wide : stream_narrow)(dst + head, src + head, body);
  const Index done = head + body;
  libc_copy(dst + done, src + done, bytes - done);
}
#else
void streaming_copy(std::byte* dst, const std::byte* src, Index bytes) {
  libc_copy(dst, src, bytes);
}
#endif

void streams_copy(std::byte* dst, const std::byte* src, Index bytes) {
  copy_bytes(dst, src, bytes, CopyHint::streaming);
  copy_fence();
}

constexpr PlainWay kWays[] = {
    {"libc", libc_copy}, {"streaming", streaming_copy}, {"streams", streams_copy}};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Scales the seconds of `used` bytes to `bytes`.
double scaled(double seconds, Index used, Index bytes) {
  return seconds * static_cast<double>(bytes) / static_cast<double>(used);
}

}  // namespace

std::span<const PlainWay> plain_ways() { return kWays; }

Interval share_of(Index bytes, int worker, int workers) {
  const Index pages = bytes / kPage;
  const Index begin = pages * worker / workers * kPage;
  return {begin, worker + 1 == workers ? bytes : pages * (worker + 1) / workers * kPage};
}

Result<std::unique_ptr<PlainCopy>> PlainCopy::make(Index bytes, Index source, int threads) {
  source = std::clamp<Index>(source, 1, std::max<Index>(bytes, 1));
  auto to = RESHARD_TRY(HostBuffer::allocate(std::max<Index>(bytes, 1), {.prefault_threads = 1}));
  auto from = RESHARD_TRY(HostBuffer::allocate(source, {.prefault_threads = 1}));
  return std::unique_ptr<PlainCopy>(new PlainCopy(std::move(to), std::move(from), threads));
}

double PlainCopy::seconds(const PlainWay& way) {
  std::atomic<Index> next{0};
  auto body = [&](int) {
    for (Index at = next.fetch_add(kChunk); at < to_.size(); at = next.fetch_add(kChunk))
      copy_chunk(way, at, std::min(at + kChunk, to_.size()));
  };
  const auto start = Clock::now();
  pool_.run(body);
  return seconds_since(start);
}

void PlainCopy::copy_chunk(const PlainWay& way, Index at, Index end) {
  while (at < end) {
    const Index source = at % from_.size();
    const Index n = std::min(end - at, from_.size() - source);
    way.copy(to_.data() + at, from_.data() + source, n);
    at += n;
  }
}

double plain_copy_seconds(Index bytes, Index source, int threads) {
  const Index used = std::min(bytes, kMaxCopied);
  if (used <= 0) return 0;
  const auto copy = PlainCopy::make(used, source, threads);
  if (!copy) return 0;
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int round = 0; round < kLeastRounds || (round < kMaxRounds && spent < kEnoughSeconds);
       ++round)
    for (const PlainWay& way : kWays) {
      const double seconds = (*copy)->seconds(way);
      best = std::min(best, seconds);
      spent += seconds;
    }
  return scaled(best, used, bytes);
}

Result<double> plain_copy_seconds(ControlPlane& control, Index bytes, int threads,
                                  Deadline deadline) {
  const Index used = std::min(bytes, std::max(kMaxCopied / control.size(), kLeastOfRank));
  std::unique_ptr<PlainCopy> copy;
  if (used > 0)
    if (auto made = PlainCopy::make(used, used, threads)) copy = *std::move(made);
  std::vector<double> mine;
  for (int round = 0; round < kGroupRounds; ++round)
    for (const PlainWay& way : kWays) {
      RESHARD_TRY(control.barrier(deadline));
      const auto start = Clock::now();
      if (copy) (void)copy->seconds(way);
      // Ranks that share cores copy one after another: measure until the last is done.
      RESHARD_TRY(control.barrier(deadline));
      mine.push_back(copy ? scaled(seconds_since(start), used, bytes) : 0);
    }
  if (used > 0 && !copy) mine.assign(mine.size(), std::numeric_limits<double>::infinity());
  std::vector<double> all(mine.size() * static_cast<std::size_t>(control.size()));
  RESHARD_TRY(control.all_gather_into(std::as_bytes(std::span(mine)),
                                      std::as_writable_bytes(std::span(all)), deadline));
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t turn = 0; turn < mine.size(); ++turn) {
    double slowest = 0;
    for (std::size_t at = turn; at < all.size(); at += mine.size())
      slowest = std::max(slowest, all[at]);
    best = std::min(best, slowest);
  }
  return best < std::numeric_limits<double>::infinity() ? best : 0;
}

}  // namespace reshard
