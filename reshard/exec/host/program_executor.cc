// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/program_executor.h"

#include <fmt/format.h>

namespace reshard::host {

Result<std::unique_ptr<ProgramExecutor>> ProgramExecutor::make(
    std::shared_ptr<const Program> program, const ProgramEnvironment& environment,
    const BoundProgram::Resolve& place) {
  std::unique_ptr<ProgramExecutor> out(new ProgramExecutor(std::move(program), environment));
  RESHARD_TRY(out->bind(place));
  return out;
}

Result<> ProgramExecutor::bind(const BoundProgram::Resolve& place) {
  for (std::size_t s = 0; s < program_->steps.size(); ++s) {
    const StepId id(static_cast<std::uint32_t>(s));
    const bool at_end = s == 0 || s + 1 == program_->steps.size();
    if (step(id).kind == Kind::barrier && !at_end)
      return fail(Code::unsupported, fmt::format("step {}: a barrier between other steps", s));
  }
  bound_ = RESHARD_TRY(BoundProgram::make(*program_, environment_, place));
  exchanges_ = ExchangeQueue(*program_, environment_.transport,
                             [&](BufferId buffer) { return bound_.address(buffer); });
  return {};
}

void ProgramExecutor::record(TraceRecorder& recorder, const trace::ProgramTimes::Names& names) {
  times_ =
      std::make_unique<trace::ProgramTimes>(*program_, environment_.pool->size(), recorder, names);
}

Result<> ProgramExecutor::barrier(StepId s) {
  begin_step(s, 0);
  RESHARD_TRY(environment_.control->barrier(deadline_));
  if (times_) times_->end(s);
  ready_.complete(s);
  return {};
}

void ProgramExecutor::end_step(StepId s, int worker) {
  if (times_) times_->end(s);
  ready_.complete(s);
  if (!meter_->add(worker, step(s).bytes, step(s).delivered)) ready_.stop();
}

Result<> ProgramExecutor::run(Deadline deadline, ProgressMeter& meter,
                              ConversionVerifier* observer) {
  RESHARD_TRY(bound_.observe(observer));
  clock_ = Stopwatch();
  deadline_ = deadline;
  meter_ = &meter;
  exchanges_.restart();
  first_seconds_ = 0;
  ready_.restart();
  const trace::RunScope timed(times_.get(), observer != nullptr);
  const auto& steps = program_->steps;
  if (!steps.empty() && steps.front().kind == Kind::barrier) {
    RESHARD_TRY(barrier(StepId(0)));
    first_seconds_ = clock_.seconds();
  }
  auto body = [this](int worker) { work(worker); };
  environment_.pool->run(body);
  if (served_) served_ = meter_->finish();
  if (!served_) {
    // Abort before dropping the pending messages: peers then see the cause, not its consequence.
    if (environment_.control != nullptr && exchanges_.is_flying())
      environment_.control->abort(served_.error().message);
    exchanges_.withdraw();
    return served_;
  }
  last_seconds_ = clock_.seconds();
  // Sources may be written again once no rank reads them, and no rank reports success before all
  // have their bytes.
  if (steps.size() > 1 && steps.back().kind == Kind::barrier)
    return barrier(StepId(static_cast<std::uint32_t>(steps.size() - 1)));
  return {};
}

/// The loop of each thread: runs tiles. Worker 0 also moves messages while it looks for a tile.
void ProgramExecutor::work(int worker) {
  while (const auto tile = next_tile(worker)) {
    begin_step(*tile, worker);
    if (on_tile_) on_tile_(*tile, false);
    if (auto done = bound_.run(step(*tile), worker); !done) {
      meter_->fail_with(std::move(done).error());
      ready_.stop();
    } else {
      if (on_tile_) on_tile_(*tile, true);
      end_step(*tile, worker);
    }
    if (worker != 0) ready_.rest();
  }
}

std::optional<StepId> ProgramExecutor::next_tile(int worker) {
  if (worker != 0) {
    const trace::WaitScope waits(times_.get(), worker, trace::Awaited::tiles);
    return ready_.wait_and_take(worker);
  }
  auto next = serve();
  served_ = next ? Result<>() : tl::unexpected(std::move(next).error());
  if (next && *next) return *next;
  ready_.stop();
  return std::nullopt;
}

/// Moves messages until there is a tile for worker 0; none once the run is over.
Result<std::optional<StepId>> ProgramExecutor::serve() {
  while (!ready_.stopped()) {
    RESHARD_TRY(progress());
    if (ready_.stopped()) break;
    if (const auto tile = ready_.take(0)) return tile;
    if (!ready_.is_idle()) {
      const trace::WaitScope waits(times_.get(), 0, trace::Awaited::tiles);
      ready_.pause(!exchanges_.is_flying());
    } else if (can_begin()) {
      continue;  // It became free since progress(); a peer may wait for it.
    } else if (exchanges_.is_flying()) {
      RESHARD_TRY(wait_for_messages());
      end_exchange();
    } else {
      if (ready_.all_done() && exchanges_.all_over()) break;
      return fail(Code::corrupt, "a step of the program waits for what never happens");
    }
  }
  return std::nullopt;
}

/// Begins the exchanges that wait for nothing any more, and ends those that are complete.
Result<> ProgramExecutor::progress() {
  if (!exchanges_.is_flying() && !can_begin()) return {};
  // A transport may move bytes here.
  const trace::WaitScope waits(times_.get(), 0, trace::Awaited::messages,
                               exchanges_.is_flying() ? exchanges_.oldest() : *exchanges_.next());
  while (exchanges_.is_flying() && !ready_.stopped())
    if (!RESHARD_TRY(poll())) break;
  while (can_begin() && !ready_.stopped()) {
    begin_step(*exchanges_.next(), 0);
    RESHARD_TRY(exchanges_.begin());
    RESHARD_TRY(poll());
  }
  return {};
}

/// Waits for the oldest exchange in progress.
Result<> ProgramExecutor::wait_for_messages() {
  const trace::WaitScope waits(times_.get(), 0, trace::Awaited::messages, exchanges_.oldest());
  return exchanges_.wait(deadline_);
}

/// Ends the oldest exchange in progress if it is complete; false if it is not.
Result<bool> ProgramExecutor::poll() {
  if (!RESHARD_TRY(exchanges_.test())) return false;
  end_exchange();
  return true;
}

void ProgramExecutor::end_exchange() {
  const StepId s = exchanges_.end();
  if (first_seconds_ == 0) first_seconds_ = clock_.seconds();
  end_step(s, 0);
}

}  // namespace reshard::host
