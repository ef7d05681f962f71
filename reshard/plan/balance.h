// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/base/ids.h"
#include "reshard/index/interval.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {

/// Bytes that must be sent by the members of a set, in any split among them.
struct Supply {
  RankSet holders;  ///< not empty when bytes > 0.
  Index bytes = 0;
};

/// Who sends how much of each supply.
struct Balance {
  /// The part [begin, next begin) of a supply's bytes that a rank sends; the last part ends at the
  /// supply's bytes.
  struct Share {
    Rank rank;
    Index begin = 0;
  };
  std::vector<std::vector<Share>>
      shares;  ///< per supply: ranks with a non-empty part, begins ascending.
  /// The least possible load of the busiest rank, in bytes, rounded up: over all sets S of
  /// supplies, max bytes(S) / |union of the holders of S|.
  Index optimal_max = 0;
};

/// Splits each supply over its holders so that the busiest rank's load is the least possible, then
/// the next busiest's, and so on (the lexicographic optimum), within one byte per share of
/// rounding.
///
/// Ranks that are in the same supplies are one node of a flow problem; connected supplies are
/// solved together by max-flow with Dinkelbach's iteration on the bottleneck's load. Cost: grows
/// with distinct sets, not with ranks squared. Deterministic. @pre total bytes * number of ranks <
/// 2^126
Balance balance(const std::vector<Supply>& supplies);

}  // namespace reshard
