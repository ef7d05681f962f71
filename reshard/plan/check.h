// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/plan/planner.h"

namespace reshard {

/// Checks the plan of one rank against the shard maps alone, independently of how it was made:
/// - cover: recvs and locals are disjoint, and together exactly the boxes of the rank's fragments;
/// - ownership: every sender holds what it sends, or receives it one hop before;
/// - least bytes: nothing that the rank holds comes from another rank.
///
/// Errors name rank, tensor and box. Cost: quadratic in the pieces of one tensor on this rank.
/// `ignored` and `only` are those of PlanOptions.
Result<> check_rank_plan(const Planner& planner, const RankPlan& plan,
                         const std::set<std::string>& ignored = {},
                         const std::set<std::string>& only = {});

}  // namespace reshard
