// SPDX-License-Identifier: Apache-2.0
#include "bench/common/plain_ways.h"

#include <atomic>

#include "bench/common/ceiling.h"
#include "reshard/exec/plain_copy.h"

namespace reshard::bench {
namespace {

/// Keeps reads from being optimised away.
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

std::vector<Contender> plain_copies(WorkerPool& pool, std::byte* dst, const std::byte* src,
                                    Index bytes) {
  std::vector<Contender> out;
  for (const PlainWay& way : plain_ways())
    out.push_back(in_shares(way.name, pool, bytes,
                            [=](Index at, Index n) { way.copy(dst + at, src + at, n); }));
  return out;
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
