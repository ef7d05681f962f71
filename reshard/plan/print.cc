// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "reshard/base/number_text.h"

namespace reshard {
namespace {

/// More nodes above each other, or labels on more edges, cannot be read.
constexpr std::size_t kMaxNodes = 8;
constexpr std::size_t kMaxLabels = 16;
constexpr double kWidestLine = 6;

/// The ranks of one side in groups of neighbours, all of one size but the last.
class Nodes {
 public:
  Nodes(const RankSet& ranks, char side) : ranks_(ranks.members()), side_(side) {
    while (ranks_.size() > kMaxNodes * group_) group_ *= 2;
  }

  std::size_t node_of(Rank r) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(ranks_, r) - ranks_.begin()) / group_;
  }
  std::string id(std::size_t node) const { return fmt::format("{}{}", side_, node); }

  std::size_t size() const { return (ranks_.size() + group_ - 1) / group_; }
  /// "rank 3", or "16 ranks" and which.
  std::string label(std::size_t node) const {
    RankSet group;
    for (std::size_t i = node * group_; i < std::min((node + 1) * group_, ranks_.size()); ++i)
      group.insert(ranks_[i]);
    if (group.size() == 1) return fmt::format("rank {}", ranks_[node * group_].value());
    return fmt::format("{} ranks\\n{}", group.size(), to_string(group));
  }

 private:
  std::vector<Rank> ranks_;
  std::size_t group_ = 1;
  char side_;
};

struct Edge {
  std::size_t from = 0, to = 0;
  bool local = false;  ///< within one rank
  auto operator<=>(const Edge&) const = default;
};

using EdgeBytes = std::map<Edge, Index>;

EdgeBytes bytes_of_edges(const Planner& planner, const Nodes& from, const Nodes& to) {
  EdgeBytes bytes;
  planner.ranks().for_each([&](Rank r) {
    planner.for_each_delivery(r, [&](const Transfer& t) {
      bytes[{from.node_of(t.src), to.node_of(t.dst), t.src == t.dst}] +=
          t.box.volume() * planner.element_bits(t.tensor) / 8;
    });
  });
  return bytes;
}

/// The nodes of one side, in one column and in the order of their ranks.
std::string column(const Nodes& nodes, const char* role, std::size_t Edge::* end,
                   const EdgeBytes& bytes) {
  std::vector<Index> sums(nodes.size());
  for (const auto& [edge, n] : bytes) sums[edge.*end] += edge.local ? 0 : n;
  std::string text, order;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    text += fmt::format("  {} [label=\"{}\\n{} {}\"];\n", nodes.id(i), nodes.label(i), role,
                        human_bytes(sums[i]));
    order += (i == 0 ? "" : " -> ") + nodes.id(i);
  }
  return text + fmt::format("  {{ rank=same; edge [style=invis]; {}; }}\n", order);
}

}  // namespace

std::string to_string(const Planner& planner, const Transfer& t, Rank seen_from) {
  std::string what =
      fmt::format("{} {}", planner.source().model()[t.tensor].name, to_string(t.box));
  if (t.relay.relayed()) what += fmt::format("  hop {} of {}", t.relay.hop + 1, t.relay.hops);
  if (t.src == t.dst) return fmt::format("copy {}  {}", t.dst.value(), what);
  if (seen_from == t.src)
    return fmt::format("send {} -> {}  {}", t.src.value(), t.dst.value(), what);
  return fmt::format("recv {} <- {}  {}", t.dst.value(), t.src.value(), what);
}

std::string to_text(const Planner& planner, const RankPlan& plan, std::size_t most) {
  std::string text;
  for (const auto* list : {&plan.locals, &plan.recvs, &plan.sends}) {
    for (std::size_t i = 0; i < list->size() && i < most; ++i)
      text += to_string(planner, (*list)[i], plan.rank) + "\n";
    if (list->size() > most) text += fmt::format("... and {} more\n", list->size() - most);
  }
  return text;
}

std::string to_dot(const Planner& planner) {
  const Nodes from(planner.source().ranks(), 's'), to(planner.target().ranks(), 't');
  const EdgeBytes bytes = bytes_of_edges(planner, from, to);
  Index most = 1;
  for (const auto& [edge, n] : bytes) most = std::max(most, n);
  std::string text = fmt::format(
      "digraph plan {{\n  rankdir=LR;\n  ranksep=3;\n  node [shape=box];\n"
      "  edge [color=\"#2166ac\", arrowsize=0.5, fontsize=11];\n"
      "  label=\"the widest line: {}; dashed: within a rank\";\n",
      human_bytes(most));
  text += column(from, "send", &Edge::from, bytes) + column(to, "receive", &Edge::to, bytes);
  for (const auto& [edge, n] : bytes) {
    const double width = kWidestLine * static_cast<double>(n) / static_cast<double>(most);
    text += fmt::format("  {} -> {} [{}=\"{}\", penwidth={:.2f}{}];\n", from.id(edge.from),
                        to.id(edge.to), bytes.size() > kMaxLabels ? "tooltip" : "label",
                        human_bytes(n), std::max(0.2, width), edge.local ? ", style=dashed" : "");
  }
  return text + "}\n";
}

}  // namespace reshard
