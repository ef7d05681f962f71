// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/outcome.h"

#include <algorithm>

namespace reshard::simulate {

double Load::bound_seconds(const ClusterLinks& links) const {
  double most = 0;
  for (std::size_t r = 0; r < used_.size(); ++r) most = std::max(most, used_[r] / links.rates()[r]);
  return most;
}

void Load::judge(const ClusterLinks& links, Simulation& out) const {
  double link_seconds = 0;
  for (std::uint32_t r = 0; r < used_.size(); ++r) {
    const double seconds = used_[r] / links.rates()[r];
    if (seconds > out.bound_seconds) {
      out.bound_seconds = seconds;
      out.bound_by = links.name(r);
    }
    if (links.is_link(r) && seconds > link_seconds) {
      link_seconds = seconds;
      out.busiest_link = links.name(r);
      out.link_bytes = used_[r];
    }
  }
  if (out.predicted_seconds > 0) out.link_use = link_seconds / out.predicted_seconds;
}

}  // namespace reshard::simulate
