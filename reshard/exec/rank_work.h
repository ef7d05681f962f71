// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// What one rank's refit is prepared from. Everything is borrowed, until it is prepared.
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

}  // namespace reshard
