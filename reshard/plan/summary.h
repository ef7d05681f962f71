// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/plan/planner.h"

namespace reshard {

/// The bytes and transfers from one rank to another, or within one rank.
struct PairBytes {
  Rank src, dst;
  Index bytes = 0, transfers = 0;
  std::int32_t hops = 0;  ///< of chains of relays that lead over this pair, the most; 0: none.
  std::int32_t hop = 0;   ///< on such a chain: ranks that relay the bytes before, at least.
  friend bool operator==(const PairBytes&, const PairBytes&) = default;
};

/// The cost of a plan over all ranks, in bytes of weights without headers.
struct PlanSummary {
  Index ranks = 0;        ///< of both layouts together.
  Index bytes_total = 0;  ///< delivered to destination ranks: over the wire and locally.
  Index bytes_wire = 0;   ///< from one rank to another.
  Index bytes_local = 0;  ///< from a rank to itself.
  Index messages = 0;     ///< pairs of distinct ranks with bytes between them.
  Index transfers = 0;    ///< boxes moved, including local copies.
  Index max_egress_bytes = 0, max_ingress_bytes = 0;  ///< busiest sender and receiver.
  Index optimal_max_egress_bytes = 0;  ///< least possible max_egress_bytes for the given replicas.
  Rank busiest_sender, busiest_receiver;
  std::vector<Index> egress, ingress;  ///< bytes on the wire by rank, from rank 0.
  std::vector<PairBytes> pairs;        ///< by (dst, src), if asked for.
};

/// Plans the deliveries of every rank and adds them up, with up to `threads` threads. Stores
/// nothing per transfer, and `with_pairs` something for each pair of ranks with bytes between them.
PlanSummary summarise(const Planner& planner, int threads = 1, bool with_pairs = false);

}  // namespace reshard
