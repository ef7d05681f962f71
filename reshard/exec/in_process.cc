// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/in_process.h"

#include <chrono>

#include "reshard/exec/direct/delivery_copies.h"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

struct InProcessRefit::State {
  State(InProcessOptions o) : options(std::move(o)), pool(options.threads) {}
  InProcessOptions options;
  WorkerPool pool;
  direct::DeliveryCopies all;
};

InProcessRefit::InProcessRefit(std::unique_ptr<State> state) : state_(std::move(state)) {}
InProcessRefit::InProcessRefit(InProcessRefit&&) noexcept = default;
InProcessRefit& InProcessRefit::operator=(InProcessRefit&&) noexcept = default;
InProcessRefit::~InProcessRefit() = default;

Result<InProcessRefit> InProcessRefit::prepare(const Planner& planner, const RankBuffers& source,
                                               const RankBuffers& target,
                                               InProcessOptions options) {
  const auto ranks = target.ranks();
  const direct::SourceAddress from = [&](Rank r, SlotId slot) -> Result<const std::byte*> {
    const std::byte* address = source.at(r, slot);
    if (address == nullptr)
      return tl::unexpected(direct::missing_memory("source", planner.source(), r, slot));
    return address;
  };
  auto state = std::make_unique<State>(std::move(options));
  state->all = RESHARD_TRY(direct::delivery_copies(planner, ranks, from, target));
  return InProcessRefit(std::move(state));
}

Result<RefitReport> InProcessRefit::run() {
  State& s = *state_;
  ProgressMeter meter("refit", s.all.bytes, s.options.progress, s.options.deadline);
  const auto start = Clock::now();
  direct::run_units(s.all.units, s.pool, meter);
  const double seconds = seconds_since(start);
  RESHARD_TRY(meter.finish());
  return RefitReport{seconds, s.all.bytes, s.all.copies};
}

}  // namespace reshard
