// SPDX-License-Identifier: Apache-2.0
#include "bench/plain_ways.h"

#include <atomic>
#include <cstring>

#include "bench/ceiling.h"
#include "reshard/transform/copy.h"

namespace reshard::bench {
namespace {

constexpr Index kPage = 4096;

/// Keeps what was read from being optimised away.
std::atomic<std::uint64_t> sink;

template <class F>
Contender in_shares(std::string name, WorkerPool& pool, Index bytes, F f) {
  return {std::move(name), [&pool, bytes, f]() -> Result<> {
            auto body = [&](int worker) {
              const Interval part = share_of(bytes, worker, pool.size());
              f(part.begin(), part.size());
            };
            pool.run(body);
            return {};
          }};
}

}  // namespace

Interval share_of(Index bytes, int worker, int workers) {
  const Index pages = bytes / kPage;
  const Index begin = pages * worker / workers * kPage;
  return {begin, worker + 1 == workers ? bytes : pages * (worker + 1) / workers * kPage};
}

std::vector<Contender> plain_copies(WorkerPool& pool, std::byte* dst, const std::byte* src,
                                    Index bytes) {
  return {
      in_shares(
          "libc", pool, bytes,
          [=](Index at, Index n) { std::memcpy(dst + at, src + at, static_cast<std::size_t>(n)); }),
      in_shares("streaming", pool, bytes,
                [=](Index at, Index n) { streaming_copy(dst + at, src + at, n); }),
      in_shares("streams", pool, bytes,
                [=](Index at, Index n) {
                  copy_bytes(dst + at, src + at, n, CopyHint::streaming);
                  copy_fence();
                }),
  };
}

std::vector<Contender> read_passes(WorkerPool& pool, const std::byte* src, Index bytes) {
  return {
      in_shares("in_order", pool, bytes,
                [=](Index at, Index n) { sink ^= read_in_order(src + at, n); }),
      in_shares("streams", pool, bytes,
                [=](Index at, Index n) { sink ^= read_eight_streams(src + at, n); }),
  };
}

}  // namespace reshard::bench
