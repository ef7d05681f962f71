// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/summary.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace reshard {
namespace {

/// The sums of one thread. `of_src` are those of one destination, and `found` its sources.
struct Sums {
  explicit Sums(std::size_t ranks) : egress(ranks, 0), ingress(ranks, 0), of_src(ranks) {}

  void add(const Planner& planner, Rank dst, bool with_pairs) {
    planner.for_each_delivered_bytes(dst, [&](Rank src, Index bytes, const RelayHop& relay) {
      PairBytes& pair = of_src[src.index()];
      if (pair.transfers++ == 0) {
        found.push_back(src);
        pair.hop = relay.hop;
      }
      pair.bytes += bytes;
      pair.hop = std::min(pair.hop, relay.hop);
      pair.hops = std::max(pair.hops, relay.hops);
    });
    std::ranges::sort(found);
    for (const Rank src : found) {
      PairBytes& pair = of_src[src.index()];
      transfers += pair.transfers;
      if (src == dst) {
        local += pair.bytes;
      } else {
        egress[src.index()] += pair.bytes;
        ingress[dst.index()] += pair.bytes;
        ++messages;
      }
      if (with_pairs) {
        pairs.push_back(pair);
        pairs.back().src = src;
        pairs.back().dst = dst;
      }
      pair = {};
    }
    found.clear();
  }

  Index transfers = 0, local = 0, messages = 0;
  std::vector<Index> egress, ingress;
  std::vector<PairBytes> of_src, pairs;
  std::vector<Rank> found;
};

}  // namespace

PlanSummary summarise(const Planner& planner, int threads, bool with_pairs) {
  const std::vector<Rank> ranks = planner.ranks().members();
  const std::size_t world = ranks.empty() ? 0 : ranks.back().index() + 1;
  std::vector<Sums> sums(static_cast<std::size_t>(std::max(threads, 1)), Sums(world));
  std::atomic<std::size_t> next{0};
  {
    std::vector<std::jthread> workers;
    for (Sums& mine : sums)
      workers.emplace_back([&planner, &ranks, &next, &mine, with_pairs] {
        for (std::size_t i = next++; i < ranks.size(); i = next++)
          mine.add(planner, ranks[i], with_pairs);
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
    s.pairs.insert(s.pairs.end(), mine.pairs.begin(), mine.pairs.end());
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
  std::ranges::sort(s.pairs, {}, [](const PairBytes& p) { return std::pair(p.dst, p.src); });
  s.bytes_total = s.bytes_wire + s.bytes_local;
  return s;
}

}  // namespace reshard
