// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "reshard/exec/conversion_observer.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/program/program.h"
#include "reshard/transport/transport.h"

namespace reshard::host {

/// Where a buffer of a program is.
struct BufferPlace {
  std::byte* address = nullptr;          ///< in this process; null if it is not mapped.
  const RemoteMemory* remote = nullptr;  ///< otherwise; must outlive the executor.
  Index offset = 0;                      ///< of the buffer in `remote`. Bytes.
};

/// When a step ran, in seconds since run() began.
struct StepTime {
  int worker = 0;
  double begin = 0, end = 0;
};

/// Runs a program with host threads: all ranks of one process, or one rank over any transport. Made
/// once, run repeatedly; run() allocates nothing per step.
///
/// The calling thread is worker 0, and the only one that uses the transport: it begins exchanges as
/// soon as what they wait for is done, and copies while they are in progress. The others take
/// tiles.
class ProgramExecutor {
 public:
  struct Environment {
    Transport* transport = nullptr;   ///< null if the program has no exchange and no get.
    ControlPlane* control = nullptr;  ///< null if the program has no barrier.
    WorkerPool* pool = nullptr;
    std::span<std::byte> staging;  ///< at least Program::staging_bytes.
  };

  /// `place` returns the place of source and target buffers. Everything is borrowed and must
  /// outlive the executor. Errors: those of `place`; out of memory; `unsupported` for a barrier
  /// that is neither the first nor the last step.
  static Result<std::unique_ptr<ProgramExecutor>> make(
      std::shared_ptr<const Program> program, const Environment& environment,
      const std::function<Result<BufferPlace>(const ProgramBuffer&)>& place);
  ~ProgramExecutor();

  /// Collective if the program has barriers or messages. Runs all steps, or until the meter says
  /// stop. An observer sees the rows that would be written to a target, which is then not written.
  /// Errors: the meter's, the transport's, the control plane's; after an error with messages
  /// in progress the group is aborted.
  Result<> run(Deadline deadline, ProgressMeter& meter, ConversionObserver* observer = nullptr);

  /// Seconds from the beginning of the last run() until the first barrier had passed; or, without
  /// one, until the first exchange was done (0 if there is none). And until the last barrier.
  double first_seconds() const;
  double last_seconds() const;
  /// Records a StepTime for each step in later runs. Owned by this object; see times().
  void record_times();
  /// By step; empty if not recorded.
  std::span<const StepTime> times() const;
  const Program& program() const;

 private:
  class State;
  explicit ProgramExecutor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard::host
