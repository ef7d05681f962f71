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

/// What a path is prepared from. Only prepare uses `part`.
struct RankWork {
  const Planner& planner;
  const RankPlan& part;
  const RankBuffers* source;
  const RankBuffers* target;
  Transport& transport;
  ControlPlane& control;
  const RankRefitOptions& options;  ///< those that ranks must agree on are the agreed ones.
  const RankRefitHooks& hooks;
  Deadline deadline;
  Rank me() const { return part.rank; }
  /// The layouts of the memory.
  const ModelLayout& source_layout() const;
  const ModelLayout& target_layout() const;
};

/// How the bytes of one rank move: RankRefit runs one of these. After an error of run() the caller
/// ends the group.
class RankPath {
 public:
  virtual ~RankPath() = default;
  RankPath() = default;
  RankPath(const RankPath&) = delete;
  RankPath& operator=(const RankPath&) = delete;

  virtual std::string_view name() const = 0;
  virtual Index staging_bytes() const = 0;
  /// Collective. Moves this rank's bytes and returns once every rank has its own. Sets the report's
  /// bytes, copies, messages, wait_seconds and move_seconds.
  /// With an observer, gathers what this rank converts again, and writes no target.
  virtual Result<> run(Deadline deadline, ConversionObserver* observer, RankReport& report) = 0;
};

/// Measures the seconds since its construction.
class PhaseClock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace reshard
