// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/plan/planner.h"
#include "reshard/program/compile.h"
#include "reshard/refit/conversion/routes.h"
#include "reshard/refit/conversion/staging_tensors.h"

namespace reshard::conversion {

/// One side of a move.
struct MoveSide {
  /// The memory is that of the session's side, as a layout of values or as stored.
  bool values = true;
  /// The memory instead: whole matrices, which one move writes and the next one reads. Null: none.
  std::shared_ptr<StagingTensors> between = nullptr;
  /// The conversion from the memory (source) or into it (target); its layout is null if the plan
  /// moves the bytes of the memory unchanged or cast.
  SideConversion conversion = {};
  /// SideConversion::finish, if there is one.
  std::shared_ptr<const Planner> finish = nullptr;
  /// The plan's local tensors if they are converted: addresses, without memory behind them.
  StagingTensors planned = {};
  bool converts() const { return conversion.layout != nullptr; }
};

/// A plan over tensors that take the same route, and where its bytes come from and go.
struct RoutePlan {
  Route route = Route::none;
  Planner planner;
  MoveSide from, into;
};

/// Plans the move of some tensors (by TensorId of the sides' values) along their route: one plan,
/// or two by way of `Routes::between`. A pure function of layouts; borrows the sides and the
/// routes. Errors: the planner's; those of check_delivered_areas().
Result<std::vector<RoutePlan>> plan_route(Route route, const std::vector<bool>& tensors,
                                          const SessionSide& source, const SessionSide& target,
                                          const Routes& routes);

}  // namespace reshard::conversion
