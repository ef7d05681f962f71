// SPDX-License-Identifier: Apache-2.0
// Protects law 4: the load of the busiest sender is optimal for the given replicas.
#include "reshard/plan/balance.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace reshard {
namespace {

RankSet ranks_of(unsigned bits) {
  RankSet s;
  for (int i = 0; i < 32; ++i)
    if (bits >> i & 1) s.insert(Rank(i));
  return s;
}

std::map<int, Index> loads(const std::vector<Supply>& supplies, const Balance& b) {
  std::map<int, Index> load;
  for (std::size_t s = 0; s < supplies.size(); ++s) {
    for (std::size_t i = 0; i < b.shares[s].size(); ++i) {
      const Index end = i + 1 < b.shares[s].size() ? b.shares[s][i + 1].begin : supplies[s].bytes;
      load[b.shares[s][i].rank.value()] += end - b.shares[s][i].begin;
    }
  }
  return load;
}

/// The maximum over all sets of ranks of the bytes only they can send, per rank (Hall's theorem).
double optimum(const std::vector<std::pair<unsigned, Index>>& raw, int ranks) {
  double best = 0;
  for (unsigned s = 1; s < 1u << ranks; ++s) {
    Index bytes = 0;
    for (auto [holders, n] : raw)
      if ((holders & ~s) == 0) bytes += n;
    best = std::max(best, static_cast<double>(bytes) / std::popcount(s));
  }
  return best;
}

RC_GTEST_PROP(Balance, busiest_rank_is_at_the_optimum, ()) {
  const int ranks = *rc::gen::inRange(1, 8);
  std::vector<std::pair<unsigned, Index>> raw;
  std::vector<Supply> supplies;
  const int n = *rc::gen::inRange(0, 8);
  for (int i = 0; i < n; ++i) {
    raw.emplace_back(*rc::gen::inRange<unsigned>(1, 1u << ranks),
                     *rc::gen::inRange<Index>(0, 10000));
    supplies.push_back({ranks_of(raw.back().first), raw.back().second});
  }
  const Balance b = balance(supplies);
  const double best = optimum(raw, ranks);
  RC_ASSERT(std::abs(static_cast<double>(b.optimal_max) - best) < 1.0);
  Index total = 0, want = 0, busiest = 0;
  for (auto [rank, load] : loads(supplies, b)) {
    total += load;
    busiest = std::max(busiest, load);
  }
  for (std::size_t s = 0; s < supplies.size(); ++s) {
    want += supplies[s].bytes;
    for (const auto& share : b.shares[s]) RC_ASSERT(supplies[s].holders.contains(share.rank));
    RC_ASSERT(b.shares[s].empty() == (supplies[s].bytes == 0));
    if (!b.shares[s].empty()) RC_ASSERT(b.shares[s][0].begin == 0);
  }
  RC_ASSERT(total == want);
  RC_ASSERT(static_cast<double>(busiest) <= best + n + 1);
}

TEST(Balance, pure_data_parallel_sources_send_equal_parts) {
  const std::vector<Supply> supplies{{RankSet::range(0, 32), 32 * 514}};
  const Balance b = balance(supplies);
  EXPECT_EQ(b.shares[0].size(), 32u);
  EXPECT_EQ(b.optimal_max, 514);
  for (auto [rank, load] : loads(supplies, b)) EXPECT_EQ(load, 514);
}

TEST(Balance, tied_weights_go_to_the_less_loaded_stage) {
  // Rank 0 alone holds 100 bytes; ranks 0 and 1 both hold 60 more.
  const std::vector<Supply> supplies{{ranks_of(1), 100}, {ranks_of(3), 60}};
  const auto load = loads(supplies, balance(supplies));
  EXPECT_EQ(load.at(0), 100);
  EXPECT_EQ(load.at(1), 60);
}

TEST(Balance, ranks_below_the_bottleneck_are_balanced_too) {
  const std::vector<Supply> supplies{{ranks_of(1), 1000}, {ranks_of(7), 90}};
  const auto load = loads(supplies, balance(supplies));
  EXPECT_EQ(load.at(0), 1000);
  EXPECT_EQ(load.at(1), 45);
  EXPECT_EQ(load.at(2), 45);
}

}  // namespace
}  // namespace reshard
