// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/run/gpu_weights.h"
#include "cli/run/processes/test_kill.h"
#include "cli/run/rank_weights.h"
#include "cli/run/run_job.h"
#include "reshard/exec/progress.h"
#include "reshard/refit/session.h"
#include "reshard/transport/transport.h"

namespace reshard::cli {

/// The inputs of one rank's refits. Borrows everything.
struct RankTask {
  const RunJob& job;
  const RankWeights& weights;
  const GpuWeights* gpu;  ///< copies of them that are refitted instead; null: none.
  Transport& transport;
  ControlPlane& control;
  int threads = 1;
  Progress moving, reading;  ///< of work that reports its bytes to the group, and of other work.
  std::function<void(TestKill::Point)> at;  ///< called at points where tests kill a rank.
  std::function<void(std::string_view, Index, Index)> begin_phase;  ///< as JobWatch::begin().
};

/// One rank's part of a run in a group: the session, its refits, verification. Collective, in this
/// order. Errors abort the group.
class RankSession {
 public:
  explicit RankSession(const RankTask& task) : task_(task) {}

  /// Records the seconds of joining and of filling the source.
  void spent(double join, double fill);
  /// Prepares the session and refits, as versions 1, 2, ...
  Result<> refit();
  /// Verifies the version committed last; the outcome says what is wrong. @pre the weights are
  /// those of this rank alone
  Result<> verify();
  /// Gathers the figures of all ranks; afterwards all of them are done.
  Result<> gather();

  const Outcome& outcome() const { return outcome_; }
  /// The version of this rank's target after refit().
  TargetVersion target_version() const { return target_version_; }

 private:
  /// Figures that every rank sends to all others at the end.
  struct Figures {
    Index bytes = 0, copies = 0, messages = 0, staging = 0, peak_rss = 0, wire = 0, local = 0;
    Index plain_bytes = 0;  ///< of the plain copy that refits are compared with.
    double join = 0, fill = 0, prepare = 0;
    double begin = 0, wait = 0, move = 0, finish = 0, check = 0, commit = 0;
  };

  const RunArguments& arguments() const { return task_.job.arguments; }
  Deadline deadline() const;
  SessionOptions options() const;
  SessionSide side(const LayoutSide& side, const RankBuffers* buffers) const;
  const RankBuffers* memory(std::optional<RankBuffers> RankWeights::* host,
                            std::optional<DeviceTensors> GpuWeights::* device) const;
  Result<> measure_plain();
  Result<double> plain_seconds_on_gpu();
  Result<> run(Session& session);
  Result<> keep_trace(const Session& session);
  void keep(const SessionReport& report);
  Result<> take_verdict(Result<> verdict);

  const RankTask& task_;
  TargetVersion target_version_;
  Figures mine_;
  double plain_seconds_ = 0;  ///< of all ranks' plain copies, at the same time.
  double plain_rate_ = 0;     ///< bytes per second of one rank's.
  Outcome outcome_;
};

}  // namespace reshard::cli
