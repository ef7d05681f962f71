// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/io/files/json.h"
#include "reshard/plan/conversions.h"
#include "reshard/plan/summary.h"

/// Plans as JSON, for scripts. The keys are a stable interface.
namespace reshard {

/// The cost of planning itself.
struct PlanCost {
  double seconds = 0;        ///< making the layouts and the plan, without reading files.
  Index peak_rss_bytes = 0;  ///< the peak of the whole process so far.
};

/// Totals of one rank's part of a plan. Bytes are bytes of weights.
struct RankSummary {
  Rank rank;
  Index bytes_sent = 0;      ///< to other ranks.
  Index bytes_received = 0;  ///< from other ranks.
  Index bytes_local = 0;     ///< copied within the rank.
  Index peers_to = 0, peers_from = 0;
  Index transfers = 0;  ///< boxes sent, received and copied locally.
};
RankSummary summarise_rank(const Planner& planner, const RankPlan& part);

/// A finite number as JSON, with at most 9 significant digits.
Json json_number(double value);

/// An object with the keys plan_seconds, ranks, bytes_total, bytes_wire, bytes_local, messages,
/// transfers, max_egress_bytes, max_ingress_bytes, optimal_max_egress_bytes, digest (16 hex
/// digits), peak_rss_bytes, conversions (a list of objects with from, to, tensors,
/// elements, loses_precision, example), omitted (names of tensors that the target leaves out).
/// Plans that may relay also have relays: an object with the members of RelaySummary.
Json::Object plan_object(const PlanSummary& plan, const Planner& planner, const PlanCost& cost);

/// The same keys for the part of one rank, and "rank": bytes_total are the bytes delivered to the
/// rank, bytes_wire those of them that come from other ranks, messages the number of its peers in
/// both directions, max_egress_bytes and max_ingress_bytes its own bytes. ranks and
/// optimal_max_egress_bytes are the whole plan's.
Json::Object plan_object(const RankSummary& part, const Planner& planner, const PlanCost& cost);

/// The transfers of one rank in the order of to_text(): local, received, sent, at most `most` of
/// each. Objects with tensor, from, to, box ("[0,4)x[0,8)") and bytes; if it is relayed, also hop:
/// the ranks that relay it before.
Json::Array transfer_list(const Planner& planner, const RankPlan& part, std::size_t most);

}  // namespace reshard
