// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/run/processes/test_kill.h"
#include "cli/run/rank_weights.h"
#include "cli/run/run_job.h"
#include "reshard/exec/progress.h"
#include "reshard/refit/session.h"
#include "reshard/transport/transport.h"

namespace reshard::cli {

/// What one rank's refits need; borrowed.
struct RankTask {
  const RunJob& job;
  const RankWeights& weights;
  Transport& transport;
  ControlPlane& control;
  int threads = 1;
  Progress moving, reading;  ///< of work whose bytes the group is told of, and of other work.
  std::function<void(TestKill::Point)> at;                          ///< told how far it is.
  std::function<void(std::string_view, Index, Index)> begin_phase;  ///< as JobWatch::begin()
};

/// One rank's part of a run in a group: the session, its refits, the proof. Collective, in this
/// order. Errors end the group.
class RankSession {
 public:
  explicit RankSession(const RankTask& task) : task_(task) {}

  /// Seconds that it took to come together, and to fill the source.
  void spent(double join, double fill);
  /// Prepares and refits, as versions 1, 2, ...
  Result<> refit();
  /// Proves what was committed last; the outcome says what is wrong. @pre the weights are those of
  /// this rank alone
  Result<> verify();
  /// Adds up what all ranks did; after it, all of them are done.
  Result<> gather();

  const Outcome& outcome() const { return outcome_; }
  /// What this rank's target holds after refit().
  TargetVersion target_version() const { return held_; }

 private:
  /// What every rank tells all others at the end.
  struct Figures {
    Index bytes = 0, copies = 0, messages = 0, staging = 0, peak_rss = 0, wire = 0, local = 0;
    Index plain_bytes = 0;  ///< of the plain copy that the refits are measured against.
    double join = 0, fill = 0, prepare = 0;
    double begin = 0, before = 0, wait = 0, move = 0, finish = 0, after = 0, check = 0, commit = 0;
  };

  const RunArguments& arguments() const { return task_.job.arguments; }
  Deadline deadline() const;
  SessionOptions options() const;
  SessionSide side(const LayoutSide& side, const std::optional<RankBuffers>& buffers) const;
  Result<> measure_plain();
  Result<> run(Session& session);
  void keep(const SessionReport& report, double seconds);
  Result<> take_verdict(Result<> proved);

  const RankTask& task_;
  TargetVersion held_;
  Figures mine_;
  double plain_seconds_ = 0;  ///< of all ranks' plain copies, at the same time.
  Outcome outcome_;
};

}  // namespace reshard::cli
