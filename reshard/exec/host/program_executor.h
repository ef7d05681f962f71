// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reshard/base/stopwatch.h"
#include "reshard/exec/host/bound_program.h"
#include "reshard/exec/host/ready_tiles.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/trace/program_times.h"

namespace reshard::host {

/// Runs a program with host threads: all ranks of one process, or one rank over any transport. Made
/// once, run repeatedly; run() allocates nothing per step.
///
/// The calling thread is worker 0, and the only one that uses the transport: it begins exchanges as
/// soon as what they wait for is done, and copies while they are in progress. The others take
/// tiles.
class ProgramExecutor {
 public:
  /// `place` as BoundProgram::make(). Errors: those of `place`; out of memory; `unsupported` for a
  /// barrier that is neither the first nor the last step.
  static Result<std::unique_ptr<ProgramExecutor>> make(std::shared_ptr<const Program> program,
                                                       const ProgramEnvironment& environment,
                                                       const BoundProgram::Resolve& place);
  ProgramExecutor(const ProgramExecutor&) = delete;
  ProgramExecutor& operator=(const ProgramExecutor&) = delete;

  /// Collective if the program has barriers or messages. Runs all steps, or until the meter says
  /// stop. An observer sees the rows that would be written to a target, which is then not written.
  /// Errors: the meter's, the transport's, the control plane's; after an error with messages
  /// in progress the group is aborted.
  Result<> run(Deadline deadline, ProgressMeter& meter, ConversionObserver* observer = nullptr);

  /// Seconds from the beginning of the last run() until the first barrier had passed; or, without
  /// one, until the first exchange was done (0 if there is none). And until the last barrier.
  double first_seconds() const { return first_seconds_; }
  double last_seconds() const { return last_seconds_; }
  /// In later runs, the worker that runs a tile calls hook(tile, false) before it and
  /// hook(tile, true) after it.
  void on_tile(std::function<void(StepId, bool)> hook) { on_tile_ = std::move(hook); }
  /// Gives the recorder (borrowed) the events of later runs. `names` names the local tensors in it.
  void record(TraceRecorder& recorder, const trace::ProgramTimes::Names& names);
  const Program& program() const { return *program_; }

 private:
  using Kind = ProgramStep::Kind;

  ProgramExecutor(std::shared_ptr<const Program> program, const ProgramEnvironment& environment)
      : program_(std::move(program)), environment_(environment), ready_(*program_) {}
  Result<> bind(const BoundProgram::Resolve& place);

  const ProgramStep& step(StepId s) const { return program_->steps[s.index()]; }
  bool is_flying() const { return over_ < begun_; }
  bool can_begin() const {
    return begun_ < exchanges_.size() && ready_.is_free(exchanges_[begun_]);
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
  std::vector<StepId> exchanges_;
  std::unique_ptr<trace::ProgramTimes> times_;  ///< null: nothing is timed.
  std::function<void(StepId, bool)> on_tile_;
  double first_seconds_ = 0, last_seconds_ = 0;

  // Of one run.
  Stopwatch clock_;
  Deadline deadline_ = Deadline::never();
  ProgressMeter* meter_ = nullptr;
  Result<> served_;                             ///< what ended worker 0.
  std::vector<std::unique_ptr<Event>> events_;  ///< by exchange.
  std::size_t over_ = 0, begun_ = 0;            ///< exchanges that are complete; that began.
};

}  // namespace reshard::host
