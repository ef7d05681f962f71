// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reshard/base/stopwatch.h"
#include "reshard/exec/exchange_queue.h"
#include "reshard/exec/executor.h"
#include "reshard/exec/host/bound_program.h"
#include "reshard/exec/host/ready_tiles.h"
#include "reshard/memory/worker_pool.h"

namespace reshard::host {

/// Runs a program with host threads: all ranks of one process, or one rank over any transport. Made
/// once, run repeatedly; run() allocates nothing per step.
///
/// The calling thread is worker 0, and the only one that uses the transport: it begins exchanges as
/// soon as what they wait for is done, and copies while they are in progress. The others take
/// tiles.
class ProgramExecutor : public Executor {
 public:
  /// `place` as BoundProgram::make(). Errors: those of `place`; out of memory; `unsupported` for a
  /// barrier that is neither the first nor the last step.
  static Result<std::unique_ptr<ProgramExecutor>> make(std::shared_ptr<const Program> program,
                                                       const ProgramEnvironment& environment,
                                                       const BoundProgram::Resolve& place);

  Result<> run(Deadline deadline, ProgressMeter& meter,
               ConversionVerifier* observer = nullptr) override;
  double first_seconds() const override { return first_seconds_; }
  double last_seconds() const override { return last_seconds_; }
  void record(TraceRecorder& recorder, const trace::ProgramTimes::Names& names) override;
  const Program& program() const override { return *program_; }
  Index scratch_bytes() const override {
    return program_->scratch_bytes * environment_.pool->size();
  }
  /// In later runs, the worker that runs a tile calls hook(tile, false) before it and
  /// hook(tile, true) after it.
  void on_tile(std::function<void(StepId, bool)> hook) { on_tile_ = std::move(hook); }

 private:
  using Kind = ProgramStep::Kind;

  ProgramExecutor(std::shared_ptr<const Program> program, const ProgramEnvironment& environment)
      : program_(std::move(program)), environment_(environment), ready_(*program_) {}
  Result<> bind(const BoundProgram::Resolve& place);

  const ProgramStep& step(StepId s) const { return program_->steps[s.index()]; }
  bool can_begin() const {
    const auto next = exchanges_.next();
    return next && ready_.is_free(*next);
  }
  void begin_step(StepId s, int worker) {
    if (times_) times_->begin(s, worker);
  }
  void end_step(StepId s, int worker);

  Result<> barrier(StepId s);
  void work(int worker);
  std::optional<StepId> next_tile(int worker);
  Result<std::optional<StepId>> serve();
  Result<> progress();
  Result<> wait_for_messages();
  Result<bool> poll();
  void end_exchange();

  std::shared_ptr<const Program> program_;
  ProgramEnvironment environment_;
  BoundProgram bound_;
  ReadyTiles ready_;
  ExchangeQueue exchanges_;
  std::unique_ptr<trace::ProgramTimes> times_;  ///< null: nothing is timed.
  std::function<void(StepId, bool)> on_tile_;
  double first_seconds_ = 0, last_seconds_ = 0;

  // Of one run.
  Stopwatch clock_;
  Deadline deadline_ = Deadline::never();
  ProgressMeter* meter_ = nullptr;
  Result<> served_;  ///< what ended worker 0.
};

}  // namespace reshard::host
