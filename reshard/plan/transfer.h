// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/base/ids.h"
#include "reshard/index/box.h"

namespace reshard {

/// A box of one canonical tensor that goes from one rank to one rank; src == dst is a local copy.
struct Transfer {
  TensorId tensor;
  Rank src, dst;
  Box box;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// What one rank does in a refit. Sends are ordered by (dst, tensor, box), recvs by (src, tensor,
/// box): the bytes between two ranks are the same sequence on both sides.
struct RankPlan {
  Rank rank;
  std::vector<Transfer> sends;   ///< to other ranks.
  std::vector<Transfer> recvs;   ///< from other ranks.
  std::vector<Transfer> locals;  ///< from this rank to itself; never on the wire.
};

}  // namespace reshard
