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

/// Which ranks plan in build_centralized_reshard_plan(). The operations are the same either way.
enum class PlannedBy {
  every_rank,  ///< each rank plans for itself; all compare digests.
  rank_zero,   ///< rank 0 plans for all ranks and scatters the plans.
};

/// Collective over the control plane's ranks. Plans the refit from all ranks' source modules to all
/// ranks' destination modules, from the metadata that each rank reports; returns this rank's
/// operations. `src` is null on a rank without source model, `dst` on one without destination
/// model. A rank with neither is idle: it takes part in the collectives and has no operations. A
/// rank with both reports them under one rank number, which need not be its number in the control
/// plane.
///
/// Errors: those of MetadataGatherer, gathered_layouts() and Planner::make(), identical on every
/// rank; a rank whose own report is invalid aborts the group; `corrupt` if ranks disagree on the
/// digest.
Result<ReshardPlan> build_centralized_reshard_plan(ControlPlane& control, const RankMetadata* src,
                                                   const RankMetadata* dst, PlannedBy planned_by,
                                                   Deadline deadline);

/// The planner for all ranks' reported modules, and the canonical names that it ignores.
struct GatheredPlanner {
  std::shared_ptr<const Planner> planner;
  std::set<std::string> ignore;
};

/// Collective. The same with PlannedBy::every_rank, but returns the planner instead of operations,
/// to run a refit by it. Errors: the same.
Result<GatheredPlanner> gather_planner(ControlPlane& control, const RankMetadata* src,
                                       const RankMetadata* dst, Deadline deadline);

}  // namespace reshard
