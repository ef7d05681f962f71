// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// What a path is prepared from. The plan's part is needed by prepare only.
struct RankWork {
  const Planner& planner;
  const RankPlan& part;
  const RankBuffers* source;
  const RankBuffers* target;
  Transport& transport;
  ControlPlane& control;
  const RankRefitOptions& options;  ///< where ranks must agree on one, the agreed.
  const RankRefitHooks& hooks;
  Deadline deadline;
  Rank me() const { return part.rank; }
};

/// How the bytes of one rank move: what RankRefit runs. After an error of run() the caller ends the
/// group.
class RankPath {
 public:
  virtual ~RankPath() = default;
  RankPath() = default;
  RankPath(const RankPath&) = delete;
  RankPath& operator=(const RankPath&) = delete;

  virtual std::string_view name() const = 0;
  virtual Index staging_bytes() const = 0;
  /// Moves this rank's bytes and returns once every rank has its own. Fills of the report: bytes,
  /// copies, messages, and the seconds of the first two phases.
  virtual Result<> run(Deadline deadline, RankReport& report) = 0;
};

/// Seconds since it was made.
class PhaseClock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace reshard
