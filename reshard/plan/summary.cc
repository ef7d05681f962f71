// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/summary.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace reshard {
namespace {

/// The sums of one thread. `seen[src]` is the last destination that counted a message from src.
struct Sums {
  explicit Sums(std::size_t ranks) : egress(ranks, 0), ingress(ranks, 0), seen(ranks, -1) {}

  void add(const Planner& planner, Rank dst) {
    planner.for_each_delivery(dst, [&](const Transfer& t) {
      const Index bytes = t.box.volume() * planner.element_bits(t.tensor) / 8;
      ++transfers;
      if (t.src == dst) {
        local += bytes;
        return;
      }
      egress[t.src.index()] += bytes;
      ingress[dst.index()] += bytes;
      if (seen[t.src.index()] != dst.value()) ++messages;
      seen[t.src.index()] = dst.value();
    });
  }

  Index transfers = 0, local = 0, messages = 0;
  std::vector<Index> egress, ingress;
  std::vector<Rank::rep> seen;
};

}  // namespace

PlanSummary summarise(const Planner& planner, int threads) {
  const std::vector<Rank> ranks = planner.ranks().members();
  const std::size_t world = ranks.empty() ? 0 : ranks.back().index() + 1;
  std::vector<Sums> sums(static_cast<std::size_t>(std::max(threads, 1)), Sums(world));
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> workers;
    for (Sums& mine : sums)
      workers.emplace_back([&planner, &ranks, &next, &mine] {
        for (std::size_t i = next++; i < ranks.size(); i = next++) mine.add(planner, ranks[i]);
      });
  }
  PlanSummary s;
  s.ranks = static_cast<Index>(ranks.size());
  s.optimal_max_egress_bytes = planner.optimal_max_egress_bytes();
  s.egress.assign(world, 0);
  s.ingress.assign(world, 0);
  for (const Sums& mine : sums) {
    s.transfers += mine.transfers;
    s.bytes_local += mine.local;
    s.messages += mine.messages;
    for (std::size_t r = 0; r < world; ++r) {
      s.egress[r] += mine.egress[r];
      s.ingress[r] += mine.ingress[r];
    }
  }
  for (std::size_t r = 0; r < world; ++r) {
    s.bytes_wire += s.egress[r];
    if (s.egress[r] > s.max_egress_bytes) s.busiest_sender = Rank(static_cast<Rank::rep>(r));
    if (s.ingress[r] > s.max_ingress_bytes) s.busiest_receiver = Rank(static_cast<Rank::rep>(r));
    s.max_egress_bytes = std::max(s.max_egress_bytes, s.egress[r]);
    s.max_ingress_bytes = std::max(s.max_ingress_bytes, s.ingress[r]);
  }
  s.bytes_total = s.bytes_wire + s.bytes_local;
  return s;
}

}  // namespace reshard
