// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/exec/conversion_verifier.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/program/program.h"
#include "reshard/trace/program_times.h"

namespace reshard {

/// Runs a program whose buffers it knows: with threads of the host, or on a GPU. Made once, run
/// repeatedly.
class Executor {
 public:
  virtual ~Executor() = default;
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Collective if the program has barriers or messages. Runs all steps, or until the meter says
  /// stop. An observer sees the rows that would be written to a target, which is then not written.
  /// Errors: the meter's, the transport's, the control plane's, those of the GPU; after an error
  /// with messages in progress the group is aborted.
  virtual Result<> run(Deadline deadline, ProgressMeter& meter,
                       ConversionVerifier* observer = nullptr) = 0;

  /// Seconds from the beginning of the last run() until the first barrier had passed; or, without
  /// one, until the first exchange was done (0 if there is none).
  virtual double first_seconds() const = 0;
  /// And until the last barrier.
  virtual double last_seconds() const = 0;
  /// Gives the recorder (borrowed) the events of later runs. `names` names the local tensors in it.
  virtual void record(TraceRecorder& recorder, const trace::ProgramTimes::Names& names) = 0;
  virtual const Program& program() const = 0;
  /// Memory of tiles, of all workers. Bytes.
  virtual Index scratch_bytes() const = 0;
};

}  // namespace reshard
