// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/refit/conversion/plan_route.h"

namespace reshard::conversion {

/// The options of plan_moves(). Equal on all ranks.
struct MoveOptions {
  std::set<std::string> ignore;     ///< canonical names of tensors that one side may lack.
  std::set<std::string> only = {};  ///< canonical names of the tensors to move; empty: all.
  ConversionSide convert = ConversionSide::receiver;
  /// PlanOptions::relays, of a plan without quantised sides; others have direct routes.
  std::shared_ptr<const RelayOptions> relays = nullptr;
  Index staging_bytes = 0;  ///< the most staging of a rank, staging tensors included.
};

/// The moves of a refit, in the order in which they run: first tensors that need no conversion,
/// then those of each other route.
struct MovePlans {
  Routes routes;
  std::vector<RoutePlan> moves;
  Index message_bytes = 0;  ///< of the staging, those that messages may use.
  Index unit_bytes = 0;     ///< of values that are converted at once, about.
};

/// A pure function of layouts and options; the result borrows the sides. Errors: the planner's, and
/// those of find_routes().
Result<MovePlans> plan_moves(const SessionSide& source, const SessionSide& target,
                             const MoveOptions& options);

}  // namespace reshard::conversion
