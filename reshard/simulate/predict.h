// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/plan/planner.h"
#include "reshard/simulate/simulate.h"

namespace reshard {

/// The programs of ranks 0 to the last of a plan: two ranks exchange messages unless the cluster
/// lets one read the other's memory. One program of all ranks if they are one process. Errors:
/// those of compile_rank().
Result<std::vector<Program>> compile_for(const ClusterSpec& cluster, const Planner& planner);

/// Ranks, and MiB and copies of all ranks together, up to which prediction_of() simulates programs:
/// that takes seconds at most.
inline constexpr Index kMaxProgramRanks = 64, kMaxProgramParts = 60'000;

/// A simulation of a whole plan.
struct Prediction {
  Simulation simulation;
  bool of_programs = false;  ///< else of the traffic: the plan is too large for programs.
};

/// Simulates a plan on a cluster. `plan` is its summary, with pairs. Errors: those of
/// compile_for(), simulate_programs() and simulate_traffic().
Result<Prediction> prediction_of(const ClusterSpec& cluster, const Planner& planner,
                                 const PlanSummary& plan);

}  // namespace reshard
