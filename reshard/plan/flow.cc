// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/flow.h"

#include <algorithm>

namespace reshard {

std::size_t MaxFlow::add_edge(std::size_t from, std::size_t to, Int128 capacity) {
  edges_.push_back({to, first_[from], capacity});
  first_[from] = edges_.size() - 1;
  edges_.push_back({from, first_[to], 0});
  first_[to] = edges_.size() - 1;
  return edges_.size() - 2;
}

bool MaxFlow::find_levels(std::size_t source, std::size_t sink) {
  level_.assign(first_.size(), -1);
  level_[source] = 0;
  std::vector<std::size_t> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (std::size_t e = first_[queue[i]]; e != kNone; e = edges_[e].next) {
      if (edges_[e].left == 0 || level_[edges_[e].to] >= 0) continue;
      level_[edges_[e].to] = level_[queue[i]] + 1;
      queue.push_back(edges_[e].to);
    }
  }
  return level_[sink] >= 0;
}

/// Sends flow along one path of the level graph; zero when there is none left. Iterative: graphs
/// may be deep.
Int128 MaxFlow::push(std::size_t source, std::size_t sink) {
  std::vector<std::size_t> path;
  std::size_t node = source;
  while (node != sink) {
    std::size_t& e = current_[node];
    while (e != kNone && (edges_[e].left == 0 || level_[edges_[e].to] != level_[node] + 1))
      e = edges_[e].next;
    if (e != kNone) {
      path.push_back(e);
      node = edges_[e].to;
      continue;
    }
    if (path.empty()) return 0;
    node = edges_[path.back() ^ 1].to;
    current_[node] = edges_[current_[node]].next;
    path.pop_back();
  }
  Int128 least = edges_[path[0]].left;
  for (std::size_t e : path) least = std::min(least, edges_[e].left);
  for (std::size_t e : path) {
    edges_[e].left -= least;
    edges_[e ^ 1].left += least;
  }
  return least;
}

Int128 MaxFlow::run(std::size_t source, std::size_t sink) {
  Int128 total = 0;
  while (find_levels(source, sink)) {
    current_ = first_;
    while (const Int128 sent = push(source, sink)) total += sent;
  }
  return total;
}

}  // namespace reshard
