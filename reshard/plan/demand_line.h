// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "reshard/index/interval.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {

/// The bytes of a supply, divided among the ranks that want them: ranks ascending, each with as
/// many bytes as it wants. Ranks that follow each other and want equally many are one run, so the
/// memory does not grow with the ranks.
class DemandLine {
 public:
  DemandLine() = default;
  /// `wanted`: for each set of ranks, the bytes that each of its members wants; a rank in several
  /// sets wants the sum. `per_rank` is scratch: one element per rank, 0 before and after the call.
  DemandLine(std::span<const std::pair<const RankSet*, Index>> wanted,
             std::vector<Index>& per_rank);

  /// Bytes that all ranks want together.
  Index bytes() const { return bytes_; }
  /// The offset of the rank's first byte. @pre some set contains the rank
  Index begin_of(Rank r) const { return range_of(r).begin(); }
  /// The offsets of the rank's bytes. @pre some set contains the rank
  Interval range_of(Rank r) const;

  /// Calls f(rank, the offsets of its first byte and of the first after its bytes) for each rank
  /// whose bytes overlap [begin, end).
  template <class F>
  void for_each_overlap(Index begin, Index end, F&& f) const {
    if (begin >= end || begin >= bytes_) return;
    auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                                [](Index x, const Run& r) { return x < r.begin; }) -
               1;
    Index nth = run->first + (begin - run->begin) / run->each;
    for (Rank r = ranks_.nth(nth);; r = ranks_.after(r)) {
      if (run + 1 != runs_.end() && nth == (run + 1)->first) ++run;
      const Index from = run->begin + (nth - run->first) * run->each;
      if (from >= end) return;
      f(r, from, from + run->each);
      if (++nth == size_) return;
    }
  }

 private:
  /// Ranks from number `first` of the ranks on, with `each` bytes each, above 0.
  struct Run {
    Index first, begin, each;
  };
  RankSet ranks_;
  std::vector<Run> runs_;
  Index size_ = 0, bytes_ = 0;
};

}  // namespace reshard
