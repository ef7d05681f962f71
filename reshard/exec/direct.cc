// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "reshard/exec/delivery_copies.h"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

struct DirectRefit::State {
  State(DirectOptions o) : options(std::move(o)), pool(options.threads) {}
  DirectOptions options;
  WorkerPool pool;
  DeliveryCopies all;
};

DirectRefit::DirectRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
DirectRefit::DirectRefit(DirectRefit&&) noexcept = default;
DirectRefit& DirectRefit::operator=(DirectRefit&&) noexcept = default;
DirectRefit::~DirectRefit() = default;

Result<DirectRefit> DirectRefit::prepare(const Planner& planner, const RankBuffers& source,
                                         const RankBuffers& target, DirectOptions options) {
  const auto ranks = target.ranks();
  const SourceAddress from = [&](Rank r, SlotId slot) -> Result<const std::byte*> {
    const std::byte* address = source.at(r, slot);
    if (address == nullptr)
      return tl::unexpected(missing_memory("source", planner.source(), r, slot));
    return address;
  };
  auto state = std::make_unique<State>(std::move(options));
  state->all = RESHARD_TRY(delivery_copies(planner, ranks, from, target));
  return DirectRefit(std::move(state));
}

Result<RefitReport> DirectRefit::run() {
  State& s = *state_;
  ProgressMeter meter("refit", s.all.bytes, s.options.progress, s.options.deadline);
  const auto start = Clock::now();
  run_units(s.all.units, s.pool, meter);
  const double seconds = seconds_since(start);
  RESHARD_TRY(meter.finish());
  return RefitReport{seconds, s.all.bytes, s.all.copies};
}

Result<double> DirectRefit::plain_copy_seconds(Index most_bytes) const {
  State& s = *state_;
  const Index share = std::max<Index>(1, std::min(s.all.bytes, most_bytes) / s.pool.size());
  auto from = RESHARD_TRY(HostBuffer::allocate(share * s.pool.size(), {s.pool.size()}));
  auto to = RESHARD_TRY(HostBuffer::allocate(share * s.pool.size(), {s.pool.size()}));
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    auto body = [&](int worker) {
      std::byte* dst = to.data() + share * worker;
      const std::byte* src = from.data() + share * worker;
      if (round % 2 == 0) {
        std::memcpy(dst, src, static_cast<std::size_t>(share));
      } else {
        copy_bytes(dst, src, share, CopyHint::streaming);
        copy_fence();
      }
    };
    const auto start = Clock::now();
    s.pool.run(body);
    const double seconds = seconds_since(start);
    best = round == 0 ? seconds : std::min(best, seconds);
  }
  return best * static_cast<double>(s.all.bytes) / static_cast<double>(share * s.pool.size());
}

}  // namespace reshard
