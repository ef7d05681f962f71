// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/simulate/cluster_links.h"
#include "reshard/simulate/simulate.h"

namespace reshard::simulate {

/// Adds up what uses the resources of a cluster while it is simulated.
class Load {
 public:
  explicit Load(std::size_t resources) : used_(resources, 0) {}
  /// An activity of some units. Resources beyond those of the cluster are not counted.
  void add(std::span<const ResourceUse> uses, double units) {
    for (const ResourceUse& use : uses)
      if (use.resource < used_.size()) used_[use.resource] += use.weight * units;
  }
  /// Fills in the bound and the busiest link. @pre predicted_seconds is known
  void judge(const ClusterLinks& links, Simulation& out) const;
  /// The time that the busiest resource needs.
  double bound_seconds(const ClusterLinks& links) const;

 private:
  std::vector<double> used_;
};

}  // namespace reshard::simulate
