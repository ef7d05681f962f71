// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/plan/planner.h"
#include "reshard/simulate/cluster.h"

namespace reshard {

/// The places of ranks 0 to `ranks` - 1 on a cluster, as plans with relays take them. Ranks of one
/// host, or of one NVLink domain, are in one domain. @pre check_cluster() passes
RankPlaces places_of(const ClusterSpec& cluster, Index ranks);

/// PlanOptions::relays for plans of any size on a cluster. Null: RouteMode::direct.
std::shared_ptr<const RelayOptions> relays_on(const ClusterSpec& cluster, RouteMode routes);

}  // namespace reshard
