// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>

#include "reshard/base/result.h"
#include "reshard/model/reported/parameter_metadata.h"
#include "reshard/plan/reshard_plan.h"
#include "reshard/transport/control.h"

namespace reshard {

/// Who plans in build_centralized_reshard_plan; the operations are the same.
enum class PlannedBy {
  every_rank,  ///< each rank plans for itself; all compare one digest.
  rank_zero,   ///< rank 0 plans for all and scatters; the others wait.
};

/// Collective over the control plane's ranks. What each rank's live modules report becomes the plan
/// of the refit from all source modules to all destination modules; the result is this rank's own
/// part. `src` is null on a rank without source model, `dst` on one without destination model; a
/// rank with neither is idle, takes part in the collectives and has no operations. A rank with both
/// reports them under one rank number; numbers need not be those of the control plane.
///
/// Errors: those of MetadataGatherer, gathered_layouts and Planner::make, the same on every rank; a
/// rank whose own report is refused aborts the group; `corrupt` when ranks disagree on the digest.
Result<ReshardPlan> build_centralized_reshard_plan(ControlPlane& control, const RankMetadata* src,
                                                   const RankMetadata* dst, PlannedBy planned_by,
                                                   Deadline deadline);

/// The planner of what all ranks' live modules report, and the canonical names that it ignores.
struct GatheredPlanner {
  std::shared_ptr<const Planner> planner;
  std::set<std::string> ignore;
};

/// Collective, as build_centralized_reshard_plan() where every rank plans: the planner itself, for
/// those who run it. Errors: the same.
Result<GatheredPlanner> gather_planner(ControlPlane& control, const RankMetadata* src,
                                       const RankMetadata* dst, Deadline deadline);

}  // namespace reshard
