// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// The inputs that one rank's refit is prepared from. Everything is borrowed, until it is prepared.
struct PrepareArguments {
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
  const ModelLayout& source_layout() const { return memory_layout(false); }
  const ModelLayout& target_layout() const { return memory_layout(true); }

 private:
  const ModelLayout& memory_layout(bool is_target) const {
    const auto& planned = is_target ? planner.shared_target() : planner.shared_source();
    if (hooks.conversions == nullptr) return *planned;
    const RefitConversions& both = *hooks.conversions;
    return *memory_of(is_target ? both.after : both.before, is_target, planned);
  }
};

}  // namespace reshard
