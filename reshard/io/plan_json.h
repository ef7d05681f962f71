// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/io/files/json.h"
#include "reshard/plan/conversions.h"
#include "reshard/plan/summary.h"

/// Plans as JSON: the keys that scripts read.
namespace reshard {

/// What making a plan cost.
struct PlanCost {
  double seconds = 0;        ///< layouts and plan, nothing read from disk.
  Index peak_rss_bytes = 0;  ///< of the process so far.
};

/// What one rank does in a plan, added up. Bytes of weights.
struct RankSummary {
  Rank rank;
  Index bytes_sent = 0;      ///< to other ranks.
  Index bytes_received = 0;  ///< from other ranks.
  Index bytes_local = 0;     ///< from itself.
  Index peers_to = 0, peers_from = 0;
  Index transfers = 0;  ///< boxes sent, received and copied locally.
};
RankSummary summarise_rank(const Planner& planner, const RankPlan& part);

/// A finite number as JSON; at most 9 significant digits.
Json json_number(double value);

/// One object with the keys plan_seconds, ranks, bytes_total, bytes_wire, bytes_local, messages,
/// transfers, max_egress_bytes, max_ingress_bytes, optimal_max_egress_bytes, digest (16 hex
/// digits), peak_rss_bytes, conversions (a list of objects of from, to, tensors, elements,
/// loses_precision, example), omitted (names of tensors that the target leaves out).
Json::Object plan_object(const PlanSummary& plan, const Planner& planner, const PlanCost& cost);

/// The same keys for one rank's part alone, and "rank": bytes_total is what the rank is given,
/// bytes_wire what of it comes from others, messages its peers in both directions, max_egress_bytes
/// and max_ingress_bytes its own; ranks and optimal_max_egress_bytes are the whole plan's.
Json::Object plan_object(const RankSummary& part, const Planner& planner, const PlanCost& cost);

/// The transfers of one rank, at most `most` of each kind, in the order of to_text: objects of
/// tensor, from, to, box
/// ("[0,4)x[0,8)") and bytes.
Json::Array transfer_list(const Planner& planner, const RankPlan& part, std::size_t most);

}  // namespace reshard
