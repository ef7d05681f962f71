// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_map>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {

/// A rank set of a plan: its position in a RankSets table.
using SetId = StrongInt<struct SetIdTag>;

/// Rank sets, each stored once; ids are given in the order of first sight, so they are
/// deterministic.
class RankSets {
 public:
  SetId intern(const RankSet& ranks);
  const RankSet& operator[](SetId id) const { return sets_[id.index()]; }
  Index size() const { return static_cast<Index>(sets_.size()); }

 private:
  std::vector<RankSet> sets_;
  std::unordered_map<std::uint64_t, std::vector<SetId>> by_hash_;
};

}  // namespace reshard
