// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "reshard/base/int128.h"

namespace reshard {

/// Max-flow of Dinic on a small directed graph; capacities are exact 128-bit integers.
class MaxFlow {
 public:
  explicit MaxFlow(std::size_t nodes) : first_(nodes, kNone) {}

  /// Adds an edge and returns its id.
  std::size_t add_edge(std::size_t from, std::size_t to, Int128 capacity);
  Int128 run(std::size_t source, std::size_t sink);
  /// @pre run() was called
  Int128 flow(std::size_t edge) const { return edges_[edge ^ 1].left; }
  /// True if the node is still reachable from the source: the source side of a minimum cut. @pre
  /// run() was called
  bool on_source_side(std::size_t node) const { return level_[node] >= 0; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Edge {
    std::size_t to, next;
    Int128 left;
  };
  bool find_levels(std::size_t source, std::size_t sink);
  Int128 push(std::size_t source, std::size_t sink);

  std::vector<Edge> edges_;
  std::vector<std::size_t> first_, current_;
  std::vector<int> level_;
};

}  // namespace reshard
