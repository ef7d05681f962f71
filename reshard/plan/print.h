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

/// The whole plan as a Graphviz digraph: senders to the left, receivers to the right, and an edge
/// for each two that exchange bytes, as wide as these are many. A node is one rank where a side has
/// at most eight ranks, else a group of 2, 4, 8, ... neighbouring ranks, so that a side has at most
/// eight nodes. Edges have their bytes as labels where they are few, else as tooltips (-Tsvg).
/// Copies within a rank are edges of their own, dashed.
std::string to_dot(const Planner& planner);

}  // namespace reshard
