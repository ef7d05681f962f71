// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/base/ids.h"
#include "reshard/index/interval.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {

/// Bytes that the ranks of a set hold and that must be sent, in any split among these ranks.
struct Supply {
  RankSet holders;  ///< not empty if bytes > 0.
  Index bytes = 0;
};

/// The split of each supply among its holders.
struct Balance {
  /// The part of a supply's bytes that a rank sends: from `begin` to the next share's begin, or to
  /// the end of the supply.
  struct Share {
    Rank rank;
    Index begin = 0;
  };
  std::vector<std::vector<Share>> shares;  ///< per supply: the non-empty shares, ascending.
  /// The least possible load of the busiest rank in bytes, rounded up: the maximum over all sets S
  /// of supplies of bytes(S) / |union of the holders of S|.
  Index optimal_max = 0;
};

/// Splits each supply over its holders so that the load of the busiest rank is minimal, then that
/// of the next busiest, and so on (lexicographic optimum), within one byte of rounding per share.
///
/// Ranks that hold the same supplies are one node of a flow problem; connected supplies are solved
/// together by max-flow with Dinkelbach's iteration on the bottleneck's load. Cost: grows with the
/// number of distinct sets, not with ranks squared. Deterministic. @pre total bytes * number of
/// ranks < 2^126
Balance balance(const std::vector<Supply>& supplies);

}  // namespace reshard
