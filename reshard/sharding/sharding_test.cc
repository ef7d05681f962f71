// SPDX-License-Identifier: Apache-2.0
// Protects: rank coordinates, the shard rules of the frameworks, and rank sets as sets.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "reshard/sharding/cut.h"
#include "reshard/sharding/mesh.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {
namespace {

TEST(Mesh, coordinates_follow_the_order_string) {
  const Mesh m = *Mesh::from_order("tp-cp-ep-dp-pp", {{"tp", 4}, {"dp", 2}, {"pp", 2}}, Rank(64));
  EXPECT_EQ(m.size(), 16);
  EXPECT_EQ(m.coordinate(Rank(64 + 4 + 1), m.axis("tp")), 1);
  EXPECT_EQ(m.coordinate(Rank(64 + 4 + 1), m.axis("dp")), 1);
  EXPECT_EQ(m.coordinate(Rank(64 + 4 + 1), m.axis("pp")), 0);
  EXPECT_EQ(m.rank_at({3, 0, 0, 1, 1}), Rank(64 + 15));
  EXPECT_FALSE(m.contains(Rank(63)));
  EXPECT_FALSE(m.contains(Rank(80)));
}

TEST(Mesh, refuses_what_is_not_a_grid) {
  EXPECT_FALSE(Mesh::make({{"tp", 0}}, Rank(0)));
  EXPECT_FALSE(Mesh::make({{"tp", 2}, {"tp", 2}}, Rank(0)));
  EXPECT_FALSE(Mesh::make({{"tp", 1 << 20}, {"dp", 2}}, Rank(0)));
  EXPECT_FALSE(Mesh::make({{"tp", 1}}, Rank(-1)));
  EXPECT_FALSE(Mesh::from_order("tp-dp", {{"pp", 2}}, Rank(0)));
}

TEST(Cut, uneven_rules_are_those_of_the_frameworks) {
  const auto sizes = [](CutRule rule, Index m, Index n) {
    std::vector<Index> out;
    for (Index c = 0; c < n; ++c) out.push_back(part_of(rule, m, n, c).size());
    return out;
  };
  EXPECT_EQ(sizes(CutRule::balanced, 10, 4), (std::vector<Index>{3, 3, 2, 2}));
  EXPECT_EQ(sizes(CutRule::ceil, 10, 4), (std::vector<Index>{3, 3, 3, 1}));
  EXPECT_EQ(sizes(CutRule::ceil, 5, 4), (std::vector<Index>{2, 2, 1, 0}));
  EXPECT_EQ(part_of(CutRule::spread, 2, 8, 5), (Interval{1, 2}));
  EXPECT_EQ(part_of(CutRule::spread, 8, 2, 1), (Interval{4, 8}));
}

TEST(Cut, two_axes_cut_in_order) {
  const Mesh m = *Mesh::make({{"b", 2}, {"a", 2}}, Rank(0));
  DimCut how;
  how.num_axes = 2;
  how.axes = {1, 0};
  EXPECT_EQ(cut(how, m, 8, {0, 1}), (Interval{4, 6}));
  how.rule = CutRule::ceil;
  EXPECT_EQ(cut(how, m, 5, {1, 0}), (Interval{2, 3}));
  how.combine = DimCut::Combine::flattened;
  EXPECT_EQ(cut(how, m, 5, {1, 0}), (Interval{2, 4}));
  EXPECT_EQ(cut(DimCut{}, m, 5, {1, 0}), (Interval{0, 5}));
}

RC_GTEST_PROP(Cut, parts_cover_the_dimension_once, ()) {
  const Index extent = *rc::gen::inRange<Index>(0, 40), n = *rc::gen::inRange<Index>(1, 9);
  const Mesh m = *Mesh::make({{"tp", n}}, Rank(0));
  const DimCut how = cut_over(0, *rc::gen::element(CutRule::balanced, CutRule::ceil),
                              *rc::gen::inRange<Index>(1, 5));
  Index at = 0;
  for (Index c = 0; c < n; ++c) {
    const Interval part = cut(how, m, extent, {c});
    if (part.empty()) continue;
    RC_ASSERT(part.begin() == at);
    at = part.end();
  }
  RC_ASSERT(at == extent);
}

RC_GTEST_PROP(RankSet, behaves_as_a_set, ()) {
  std::set<int> a, b;
  RankSet x, y;
  for (int i = 0; i < 20; ++i) {
    a.insert(*rc::gen::inRange(0, 200));
    b.insert(*rc::gen::inRange(0, 200));
  }
  for (int i : a) x.insert(Rank(i));
  for (int i : b) y.insert(Rank(i));
  const RankSet both = x & y, any = x | y, less = x - y;
  Index below = 0;
  for (int i = 0; i < 210; ++i) {
    RC_ASSERT(x.count_below(Rank(i)) == below);
    below += a.count(i) != 0;
    RC_ASSERT(both.contains(Rank(i)) == (a.count(i) && b.count(i)));
    RC_ASSERT(any.contains(Rank(i)) == (a.count(i) || b.count(i)));
    RC_ASSERT(less.contains(Rank(i)) == (a.count(i) && !b.count(i)));
  }
  RC_ASSERT((both | less) == x);
  RC_ASSERT((x - x) == RankSet{});
  const std::vector<Rank> members = x.members();
  for (std::size_t i = 0; i < members.size(); ++i) {
    RC_ASSERT(x.nth(static_cast<Index>(i)) == members[i]);
    if (i > 0) RC_ASSERT(x.after(members[i - 1]) == members[i]);
  }
}

TEST(RankSet, prints_runs) {
  RankSet s = RankSet::range(0, 8);
  s.insert(Rank(16));
  EXPECT_EQ(to_string(s), "{0-7, 16}");
}

}  // namespace
}  // namespace reshard
