// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/print.h"

#include <fmt/format.h>

#include <map>

namespace reshard {

std::string to_string(const Planner& planner, const Transfer& t, Rank seen_from) {
  const std::string what =
      fmt::format("{} {}", planner.source().model()[t.tensor].name, to_string(t.box));
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
  std::map<std::pair<Rank, Rank>, Index> bytes;
  planner.ranks().for_each([&](Rank r) {
    planner.for_each_delivery(r, [&](const Transfer& t) {
      bytes[{t.src, t.dst}] += t.box.volume() * planner.element_bits(t.tensor) / 8;
    });
  });
  std::string text = "digraph plan {\n  rankdir=LR;\n  node [shape=box];\n";
  planner.ranks().for_each([&](Rank r) {
    const bool from = planner.source().ranks().contains(r),
               to = planner.target().ranks().contains(r);
    text += fmt::format("  r{} [label=\"rank {}{}\"];\n", r.value(), r.value(),
                        from && to ? ""
                        : from     ? "\\nsource"
                                   : "\\ntarget");
  });
  for (const auto& [pair, n] : bytes)
    text += fmt::format("  r{} -> r{} [label=\"{:.1f} MB\"{}];\n", pair.first.value(),
                        pair.second.value(), static_cast<double>(n) / 1e6,
                        pair.first == pair.second ? ", style=dashed" : "");
  return text + "}\n";
}

}  // namespace reshard
