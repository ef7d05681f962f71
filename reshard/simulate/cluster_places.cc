// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/cluster_places.h"

#include <algorithm>

namespace reshard {

RankPlaces places_of(const ClusterSpec& cluster, Index ranks) {
  // Domains and hosts are consecutive ranks, so the larger of both contains the other.
  const Index in_domain = std::max(cluster.ranks_per_host, cluster.nvlink.ranks);
  RankPlaces places;
  Index last_host = -1, last_nic = -1;
  std::int32_t nics = 0;
  for (Rank::rep r = 0; r < ranks; ++r) {
    const Index host = cluster.host_of(Rank(r)), nic = cluster.nic_of(Rank(r));
    if (host != last_host || nic != last_nic) ++nics;
    last_host = host;
    last_nic = nic;
    places.domain.push_back(static_cast<std::int32_t>(r / in_domain));
    places.nic.push_back(nics - 1);
  }
  return places;
}

std::shared_ptr<const RelayOptions> relays_on(const ClusterSpec& cluster, RouteMode routes) {
  if (routes == RouteMode::direct) return nullptr;
  RelayOptions options;
  options.places = places_of(cluster, kMaxPlanRanks);
  return std::make_shared<const RelayOptions>(std::move(options));
}

}  // namespace reshard
