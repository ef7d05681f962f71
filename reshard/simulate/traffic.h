// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/plan/summary.h"
#include "reshard/program/program.h"
#include "reshard/simulate/cluster.h"

namespace reshard {

/// The traffic between two ranks, or within one.
struct PairTraffic {
  Rank from, to;
  Index bytes = 0;
  Index messages = 0;  ///< 0: `to` copies from the memory of `from`.
  Index copies = 0;    ///< strided copies by `to`; of messages, as many by `from`.
  Index before = 0;  ///< messages that must pass other pairs, one after another, before the first.
  friend bool operator==(const PairTraffic&, const PairTraffic&) = default;
};

/// All bytes of a refit, without their order: what programs come to when they are added up. A few
/// dozen bytes for each pair of ranks, so that thousands of ranks can be simulated.
struct ClusterTraffic {
  Index ranks = 0;                 ///< ranks are 0 to ranks - 1.
  std::vector<PairTraffic> pairs;  ///< by (to, from); at most one for two ranks.
  /// Bytes that each rank copies into messages before it sends them, and out of messages.
  std::vector<Index> packed, unpacked;
};

/// The traffic of a plan. Two ranks exchange messages of `message_bytes` unless the cluster lets
/// one read the other's memory, or the bytes are relayed. Every transfer counts as one copy of one
/// run, and all bytes of messages as packed and unpacked, which is the most that programs do. @pre
/// the summary has its pairs
ClusterTraffic traffic_of(const PlanSummary& plan, const ClusterSpec& cluster,
                          Index message_bytes = Index{1} << 20);

/// The traffic of the programs of all ranks of a group.
/// @pre each program is of a different rank, from 0 on, and passes check_program()
ClusterTraffic traffic_of(std::span<const Program> programs);

}  // namespace reshard
