// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/demand_line.h"

namespace reshard {

DemandLine::DemandLine(std::span<const std::pair<const RankSet*, Index>> wanted,
                       std::vector<Index>& per_rank) {
  for (const auto& [set, bytes] : wanted) ranks_ = ranks_ | *set;
  size_ = ranks_.size();
  if (wanted.size() == 1) {
    if (size_ == 0) return;
    runs_.push_back({0, 0, wanted[0].second});
    bytes_ = size_ * wanted[0].second;
    return;
  }
  for (const auto& [set, bytes] : wanted)
    set->for_each([&, n = bytes](Rank r) { per_rank[r.index()] += n; });
  Index nth = 0;
  ranks_.for_each([&](Rank r) {
    const Index each = std::exchange(per_rank[r.index()], 0);
    if (runs_.empty() || runs_.back().each != each) runs_.push_back({nth, bytes_, each});
    bytes_ += each;
    ++nth;
  });
}

Interval DemandLine::range_of(Rank r) const {
  const Index nth = ranks_.count_below(r);
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), nth,
                                    [](Index x, const Run& of) { return x < of.first; }) -
                   1;
  const Index begin = run->begin + (nth - run->first) * run->each;
  return {begin, begin + run->each};
}

}  // namespace reshard
