// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/plan/summary.h"

namespace reshard {

/// "recv 3 <- 1  model.norm.weight [0,64)"; one line without line end.
std::string to_string(const Planner& planner, const Transfer& transfer, Rank seen_from);

/// The plan of one rank as text: locals, recvs, sends, in order, one per line; at most `most`
/// transfers of each kind, then the number of those left out. Equal plans print equal text on every
/// machine.
std::string to_text(const Planner& planner, const RankPlan& plan,
                    std::size_t most = static_cast<std::size_t>(-1));

/// The whole plan as a Graphviz digraph: a node per rank, and an edge per pair of ranks with its
/// bytes.
/// @pre few ranks: the text grows with the number of pairs
std::string to_dot(const Planner& planner);

}  // namespace reshard
