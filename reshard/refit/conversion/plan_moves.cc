// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/plan_moves.h"

#include <algorithm>

#include "reshard/plan/waves.h"

namespace reshard::conversion {
namespace {

/// Staging for messages beside staging tensors: the least that is allowed, and what is enough.
constexpr Index kLeastStaging = Index{32} << 10, kEnoughStaging = Index{8} << 20;

/// A unit of values and its messages are part of an exchange, of which eight are in progress. The
/// least bytes that are worth a unit, and the most: more do not fit in a core's cache.
constexpr Index kUnitsInStaging = 16, kLeastUnit = Index{4} << 10, kMaxUnit = Index{512} << 10;

/// In the order in which they run.
constexpr Route kRoutes[] = {Route::plain,
                             Route::stored,
                             Route::quantise_at_receiver,
                             Route::quantise_halo,
                             Route::dequantise_at_receiver,
                             Route::quantise_at_sender,
                             Route::dequantise_at_sender,
                             Route::requantise};

std::vector<bool> with(const Routes& routes, Route route) {
  std::vector<bool> tensors;
  for (const Route r : routes.of) tensors.push_back(r == route);
  return tensors;
}

bool any(const std::vector<bool>& tensors) {
  return std::ranges::find(tensors, true) != tensors.end();
}

Result<> add_moves(Route route, const std::vector<bool>& tensors, const SessionSide& source,
                   const SessionSide& target, MovePlans& out) {
  if (!any(tensors)) return {};
  auto plans = RESHARD_TRY(plan_route(route, tensors, source, target, out.routes));
  for (RoutePlan& plan : plans) out.moves.push_back(std::move(plan));
  return {};
}

/// As many matrices at a time as the cap leaves room for.
Result<> add_moves_between(Index cap, const SessionSide& source, const SessionSide& target,
                           MovePlans& out) {
  const auto tensors = with(out.routes, Route::quantise_between);
  if (!any(tensors)) return {};
  Index& staging = out.message_bytes;
  staging = std::min(staging, std::clamp(staging / 4, kLeastStaging, kEnoughStaging));
  const QuantisedLayout* between = out.routes.between.get();
  const StagedSlots staged{between->values, value_slots(between, tensors)};
  for (const auto& group : waves_of({&staged, 1}, std::max<Index>(0, cap - staging))) {
    std::vector<bool> in_group(tensors.size());
    for (const TensorId id : group) in_group[id.index()] = tensors[id.index()];
    RESHARD_TRY(add_moves(Route::quantise_between, in_group, source, target, out));
  }
  return {};
}

}  // namespace

Result<MovePlans> plan_moves(const SessionSide& source, const SessionSide& target,
                             const MoveOptions& options) {
  MovePlans out;
  out.message_bytes = options.staging_bytes;
  const bool plain = source.quantised == nullptr && target.quantised == nullptr;
  Planner whole =
      RESHARD_TRY(Planner::make(source.values(), target.values(),
                                {options.ignore, options.only, plain ? options.relays : nullptr}));
  std::vector<bool> moves;
  for (Index i = 0; i < target.values()->model().size(); ++i)
    moves.push_back(whole.moves(TensorId(static_cast<TensorId::rep>(i))));
  out.routes = RESHARD_TRY(find_routes(source, target, moves, options.convert));
  if (plain) {
    out.moves.push_back(RoutePlan{Route::plain, std::move(whole), {}, {}});
  } else {
    for (const Route route : kRoutes)
      RESHARD_TRY(add_moves(route, with(out.routes, route), source, target, out));
    RESHARD_TRY(add_moves_between(options.staging_bytes, source, target, out));
  }
  // Identical on all ranks, since senders pack along the units of receivers.
  out.unit_bytes = std::clamp(out.message_bytes / kUnitsInStaging, kLeastUnit, kMaxUnit);
  return out;
}

}  // namespace reshard::conversion
