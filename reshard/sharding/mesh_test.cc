// SPDX-License-Identifier: Apache-2.0
// Protects: what is wrong with a mesh is said, blocks are cut where their elements are, and rank
// sets have one form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/sharding/cut.h"
#include "reshard/sharding/mesh.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

TEST(Mesh, says_what_is_no_grid) {
  const auto message = [](std::vector<Axis> axes, Rank first = Rank(0)) {
    const auto mesh = Mesh::make(std::move(axes), first);
    return mesh ? std::string("no error") : mesh.error().message;
  };
  EXPECT_THAT(message({{"tp", 0}}), HasSubstr("tp=0 must be 1 or more"));
  EXPECT_THAT(message({{"tp", 2}, {"tp", 2}}), HasSubstr("axis 'tp' is named twice"));
  EXPECT_THAT(message({{"tp", 1 << 20}, {"dp", 2}}), HasSubstr("more than 1048576 ranks"));
  EXPECT_THAT(message({{"tp", 2}}, Rank((1 << 20) - 1)), HasSubstr("more than 1048576 ranks"));
  EXPECT_THAT(message({}, Rank(1 << 20)), HasSubstr("must be between 0 and 1048575"));
  EXPECT_THAT(message(std::vector<Axis>(kMaxDims + 1, Axis{"a", 1})),
              HasSubstr("at most 8 axes, not 9"));
  EXPECT_THAT(Mesh::from_order("tp-dp", {{"pp", 2}}, Rank(0)).error().message,
              HasSubstr("order 'tp-dp' does not name 'pp', which has size 2"));
  EXPECT_TRUE(Mesh::from_order("tp-dp", {{"pp", 1}}, Rank(0)));
}

TEST(Mesh, prints_its_axes_and_first_rank) {
  EXPECT_EQ(to_string(*Mesh::make({{"tp", 4}, {"dp", 2}}, Rank(8))), "{tp:4, dp:2} from rank 8");
  EXPECT_EQ(to_string(*Mesh::make({}, Rank(0))), "{} from rank 0");
}

RC_GTEST_PROP(Cut, a_part_has_the_blocks_that_its_elements_touch, ()) {
  const Index block = *rc::gen::inRange<Index>(1, 6), elements = *rc::gen::inRange<Index>(1, 40);
  const BlockCut blocks{.block = block, .elements = elements, .window = {0, elements}};
  const Mesh mesh = *Mesh::make({{"tp", *rc::gen::inRange<Index>(1, 6)}}, Rank(0));
  DimCut how = cut_over(0);
  const Index all = (elements + block - 1) / block;
  for (Index c = 0; c < mesh.size(); ++c) {
    how.blocks = {};
    const Interval held = cut(how, mesh, elements, {c});
    how.blocks = blocks;
    const Interval part = cut(how, mesh, all, {c});
    RC_ASSERT(part == blocks_of(blocks, held));
    for (Index b = 0; b < all; ++b) {
      bool touched = false;
      for (Index e = b * block; e < std::min(elements, (b + 1) * block); ++e)
        touched |= contains(held, e);
      RC_ASSERT(contains(part, b) == touched);
    }
  }
}

TEST(Cut, blocks_of_a_window_count_from_its_first_block) {
  // Elements 10 to 30 of the cut dimension lie at 6 to 26 of a grid of blocks of 4.
  const BlockCut blocks{.block = 4, .elements = 40, .window = {10, 30}, .first = 6};
  EXPECT_EQ(blocks_of(blocks, {0, 10}), Interval{});
  EXPECT_EQ(blocks_of(blocks, {10, 12}), (Interval{0, 1}));  // 6, 7: block 1 of the grid
  EXPECT_EQ(blocks_of(blocks, {12, 17}), (Interval{1, 3}));  // 8 to 13
  EXPECT_EQ(blocks_of(blocks, {0, 40}), (Interval{0, 6}));
}

TEST(Cut, a_grid_that_begins_anew_is_padded_to_a_multiple) {
  BlockCut blocks{.block = 4, .elements = 40, .window = {}, .own_grid = true};
  EXPECT_EQ(blocks_of(blocks, {13, 22}), (Interval{0, 3}));
  blocks.multiple = 4;
  EXPECT_EQ(blocks_of(blocks, {13, 22}), (Interval{0, 4}));
  blocks.before = 3;  // 3 and 3 blocks are padded to 8
  EXPECT_EQ(blocks_of(blocks, {13, 22}), (Interval{0, 5}));
}

TEST(Cut, parts_are_counted_over_all_axes) {
  const Mesh mesh = *Mesh::make({{"a", 2}, {"b", 3}, {"c", 5}}, Rank(0));
  DimCut how;
  EXPECT_EQ(num_parts(how, mesh), 1);
  how.num_axes = 2;
  how.axes = {2, 0};
  EXPECT_EQ(num_parts(how, mesh), 10);
}

TEST(RankSet, has_one_form_and_one_hash) {
  RankSet grown = RankSet::range(0, 3);
  grown.insert(Rank(500));
  const RankSet cut = grown - RankSet::range(3, 600);
  EXPECT_EQ(cut, RankSet::range(0, 3));
  EXPECT_EQ(cut.hash(), RankSet::range(0, 3).hash());
  EXPECT_NE(cut.hash(), grown.hash());
  EXPECT_EQ(grown.size(), 4);
  EXPECT_EQ(grown.members(), (std::vector<Rank>{Rank(0), Rank(1), Rank(2), Rank(500)}));
  EXPECT_TRUE((cut - cut).empty());
  EXPECT_EQ(to_string(RankSet{}), "{}");
}

}  // namespace
}  // namespace reshard
