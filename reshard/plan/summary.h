// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/plan/planner.h"

namespace reshard {

/// What a whole plan costs, over all ranks. Bytes of weights, no headers.
struct PlanSummary {
  Index ranks = 0;        ///< of both layouts together.
  Index bytes_total = 0;  ///< delivered to destination ranks: wire plus local.
  Index bytes_wire = 0;   ///< from one rank to another.
  Index bytes_local = 0;  ///< from a rank to itself.
  Index messages = 0;     ///< pairs of distinct ranks with bytes between them.
  Index transfers = 0;    ///< boxes moved, local ones included.
  Index max_egress_bytes = 0, max_ingress_bytes = 0;  ///< busiest sender and receiver.
  Index optimal_max_egress_bytes = 0;                 ///< least possible for the given replicas.
  Rank busiest_sender, busiest_receiver;
  std::vector<Index> egress, ingress;  ///< bytes on the wire by rank, from rank 0.
};

/// Plans every rank's deliveries and adds them up, with up to `threads` threads; nothing is kept
/// per transfer.
PlanSummary summarise(const Planner& planner, int threads = 1);

}  // namespace reshard
