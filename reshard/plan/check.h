// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/plan/planner.h"

namespace reshard {

/// Checks one rank's part against the shard maps alone, without trusting how it was planned:
/// - cover: its recvs and locals are disjoint and are together exactly the boxes that its fragments
/// ask for;
/// - ownership: every source holds what it sends, the rank itself holds what it sends and copies;
/// - least bytes: nothing that the rank holds comes from another.
/// Errors name rank, tensor and box. Cost: squared in the pieces of one tensor on this rank.
/// `ignored`: names that PlanOptions::ignore let stay without a source. `only`: those that
/// PlanOptions::only asked for.
Result<> check_rank_plan(const Planner& planner, const RankPlan& part,
                         const std::set<std::string>& ignored = {},
                         const std::set<std::string>& only = {});

}  // namespace reshard
