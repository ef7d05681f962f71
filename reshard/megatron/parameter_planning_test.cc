// SPDX-License-Identifier: Apache-2.0
// Protects: source choice, descriptors and tiling give the documented results, and a plan where the
// documents define none.
#include "reshard/megatron/parameter_planning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace reshard::megatron {
namespace {

using ::testing::HasSubstr;

GroupRanks ranks(int first, int count) {
  std::vector<Rank> out;
  for (int i = 0; i < count; ++i) out.emplace_back(first + i);
  return std::make_shared<const std::vector<Rank>>(out);
}

/// The metadata of a parameter that `members` ranks from `first` cut on rows: `rows` rows each.
ParameterMetadata cut(int first, int members, Index rows, Index stride = 1) {
  ParameterMetadata m;
  m.name = "w";
  m.shape = {rows, 3};
  m.is_tp = members > 1;
  m.partition_stride = stride;
  m.owner_rank = Rank(first);
  m.tensor_parallel_group_ranks = ranks(first, members);
  m.data_parallel_group_ranks = ranks(first, 1);
  return m;
}

SourceSlice rows(int rank, Index src, Index dst, Index size) {
  return {Rank(rank), Box{{src, src + size}, {0, 3}}, Box{{dst, dst + size}, {0, 3}}};
}

std::vector<SourceSlice> tiled(const ParameterMetadata& src, const ParameterMetadata& dst, int r) {
  const auto descriptors = build_descriptors_for_param(src, dst);
  EXPECT_TRUE(descriptors.has_value()) << descriptors.error().message;
  auto slices = plan_multi_dim_lcm("w", src, dst, *descriptors, Rank(r));
  EXPECT_TRUE(slices.has_value()) << slices.error().message;
  return *std::move(slices);
}

// planner: "Construct sharding descriptors (currently TP) for this parameter based on actual
// layout."
TEST(BuildDescriptors, are_of_tp_where_either_side_is_cut) {
  const auto d = build_descriptors_for_param(cut(0, 2, 6, 2), cut(4, 3, 4));
  ASSERT_TRUE(d);
  ASSERT_EQ(d->size(), 1U);
  EXPECT_EQ((*d)[0].name, "tp");
  EXPECT_EQ((*d)[0].dim, 0);
  EXPECT_EQ((*d)[0].src_stride, 2);
  EXPECT_EQ((*d)[0].dst_stride, 1);
  EXPECT_EQ((*d)[0].src_dim_ranks, *ranks(0, 2));
  EXPECT_EQ((*d)[0].dst_dim_ranks, *ranks(4, 3));
  EXPECT_TRUE(build_descriptors_for_param(cut(0, 1, 6), cut(4, 1, 6))->empty());
  auto alone = cut(0, 2, 6);
  alone.tensor_parallel_group_ranks = nullptr;
  EXPECT_TRUE(build_descriptors_for_param(alone, cut(4, 3, 4))->empty());
}

// planner: "Guard TP descriptor with size conservation so we don't mis-classify replicated
// tensors."
TEST(BuildDescriptors, refuse_sizes_that_are_not_conserved_and_name_the_parameter) {
  const auto d = build_descriptors_for_param(cut(0, 2, 6), cut(4, 2, 12));
  ASSERT_FALSE(d);
  EXPECT_THAT(d.error().message, HasSubstr("'w'"));
  EXPECT_THAT(d.error().message, HasSubstr("2*6 on the source and 2*12 on the target"));
}

TEST(BuildDescriptors, a_replicated_side_has_one_member_though_it_carries_its_group) {
  auto whole = cut(0, 1, 12);
  whole.tensor_parallel_group_ranks = ranks(0, 2);
  const auto d = build_descriptors_for_param(whole, cut(4, 2, 6));
  ASSERT_TRUE(d) << d.error().message;
  EXPECT_EQ((*d)[0].src_dim_ranks, *ranks(0, 1));
  EXPECT_EQ(tiled(whole, cut(4, 2, 6), 5), (std::vector{rows(0, 6, 0, 6)}));
}

// planner: "TP-only planner using LCM tiling to support strides on source/destination."
TEST(PlanMultiDimLcm, cuts_the_dimension_in_lcm_units) {
  // Ns = 2, Nd = 3, L = 6: units of 2 rows.
  EXPECT_EQ(tiled(cut(0, 2, 6), cut(4, 3, 4), 5),
            (std::vector{rows(0, 4, 0, 2), rows(1, 0, 2, 2)}));
  EXPECT_EQ(tiled(cut(0, 2, 6), cut(4, 3, 4), 4),
            (std::vector{rows(0, 0, 0, 2), rows(0, 2, 2, 2)}));
}

// planner: "Supports arbitrary integer strides (contiguous micro-tiles)"
TEST(PlanMultiDimLcm, takes_gate_and_up_apart_by_strides) {
  // 2 members of gate/up pairs (Ns = 4) to 4 (Nd = 8): L = 8 units of 2 rows of 16.
  EXPECT_EQ(tiled(cut(0, 2, 8, 2), cut(4, 4, 4, 2), 5),
            (std::vector{rows(0, 2, 0, 2), rows(0, 6, 2, 2)}));
  EXPECT_EQ(tiled(cut(0, 2, 8, 2), cut(4, 4, 4, 2), 7),
            (std::vector{rows(1, 2, 0, 2), rows(1, 6, 2, 2)}));
  // To one member: segment k of the whole is gate or up of a source member.
  auto whole = cut(4, 1, 16, 2);
  EXPECT_EQ(tiled(cut(0, 2, 8, 2), whole, 4),
            (std::vector{rows(0, 0, 0, 4), rows(1, 0, 4, 4), rows(0, 4, 8, 4), rows(1, 4, 12, 4)}));
}

TEST(PlanMultiDimLcm, cuts_packed_parts_one_by_one) {
  // z 4 rows, B 2 rows over 2 members; one destination has both.
  auto src = cut(0, 2, 3);
  src.partition_sizes = {2, 1};
  auto dst = cut(4, 1, 6);
  EXPECT_EQ(tiled(src, dst, 4),
            (std::vector{rows(0, 0, 0, 2), rows(1, 0, 2, 2), rows(0, 2, 4, 1), rows(1, 2, 5, 1)}));
}

// planner: "Requires exactly one TP descriptor"
TEST(PlanMultiDimLcm, requires_exactly_one_tp_descriptor) {
  const auto src = cut(0, 2, 6), dst = cut(4, 3, 4);
  auto d = *build_descriptors_for_param(src, dst);
  EXPECT_TRUE(plan_multi_dim_lcm("w", src, dst, {}, Rank(4))->empty());
  auto two = d;
  two.push_back(d[0]);
  EXPECT_EQ(plan_multi_dim_lcm("w", src, dst, two, Rank(4)).error().code, Code::unsupported);
  d[0].name = "ep";
  EXPECT_EQ(plan_multi_dim_lcm("w", src, dst, d, Rank(4)).error().code, Code::unsupported);
}

TEST(PlanMultiDimLcm, gives_a_rank_outside_the_destination_nothing) {
  EXPECT_TRUE(tiled(cut(0, 2, 6), cut(4, 3, 4), 9).empty());
}

TEST(PlanMultiDimLcm, checks_sizes_by_itself) {
  const auto src = cut(0, 2, 6), dst = cut(4, 3, 4);
  const auto d = *build_descriptors_for_param(src, dst);
  const auto slices = plan_multi_dim_lcm("w", cut(0, 2, 5), dst, d, Rank(4));
  ASSERT_FALSE(slices);
  EXPECT_THAT(slices.error().message, HasSubstr("'w': dimension 0 is 2*5 on the source and 3*4"));
}

TEST(PlanMultiDimLcm, refuses_rows_that_a_stride_does_not_divide_and_names_the_parameter) {
  const auto src = cut(0, 2, 9, 2), dst = cut(4, 3, 6);  // gate and up of 4.5 rows
  const auto d = *build_descriptors_for_param(src, dst);
  EXPECT_FALSE(plan_multi_dim_lcm("w", src, dst, d, Rank(4)));
}

// planner: "If the source and destination DP groups match, we return a local full-tensor copy"
TEST(FinalizeDpTransfers, equal_groups_copy_the_whole_tensor_locally) {
  auto m = cut(0, 1, 6);
  m.data_parallel_group_ranks = ranks(0, 4);
  EXPECT_EQ(*finalize_dp_transfers("w", m, m, Rank(3)), (std::vector{rows(3, 0, 0, 6)}));
}

// planner: "otherwise we pick a source rank from the source DP group": of the metadata that was
// chosen for the destination's rank, its owner.
TEST(FinalizeDpTransfers, other_groups_read_the_whole_tensor_from_the_chosen_owner) {
  auto src = cut(2, 1, 6), dst = cut(8, 1, 6);
  src.data_parallel_group_ranks = ranks(0, 4);
  EXPECT_EQ(*finalize_dp_transfers("w", src, dst, Rank(8)), (std::vector{rows(2, 0, 0, 6)}));
  EXPECT_TRUE(finalize_dp_transfers("w", src, dst, Rank(9))->empty());
}

TEST(FinalizeDpTransfers, refuses_what_is_not_the_same_tensor) {
  EXPECT_FALSE(finalize_dp_transfers("w", cut(0, 1, 6), cut(8, 1, 5), Rank(8)));
  auto none = cut(0, 1, 6);
  none.data_parallel_group_ranks = nullptr;
  EXPECT_FALSE(finalize_dp_transfers("w", none, cut(8, 1, 6), Rank(8)));
}

// planner: "Route to dimension-specific planner based on parameter sharding type."
TEST(DetermineSourceRanks, routes_by_whether_either_side_is_cut) {
  EXPECT_EQ(*determine_source_ranks_for_dst_param("w", cut(0, 2, 6), cut(4, 3, 4), Rank(5)),
            tiled(cut(0, 2, 6), cut(4, 3, 4), 5));
  EXPECT_EQ(*determine_source_ranks_for_dst_param("w", cut(0, 1, 6), cut(4, 1, 6), Rank(4)),
            (std::vector{rows(0, 0, 0, 6)}));
}

TEST(DetermineSourceRanks, plans_sides_that_cut_different_dimensions) {
  const auto src = cut(0, 2, 6);  // rows [0,6), [6,12) of 12 x 3
  auto dst = cut(4, 3, 12);
  dst.shape = {12, 1};
  dst.partition_dim = 1;
  EXPECT_EQ(*determine_source_ranks_for_dst_param("w", src, dst, Rank(5)),
            (std::vector<SourceSlice>{{Rank(0), Box{{0, 6}, {1, 2}}, Box{{0, 6}, {0, 1}}},
                                      {Rank(1), Box{{0, 6}, {1, 2}}, Box{{6, 12}, {0, 1}}}}));
}

TEST(DetermineSourceRanks, says_which_sizes_differ_where_nothing_can_be_planned) {
  const auto slices =
      determine_source_ranks_for_dst_param("w", cut(0, 2, 6), cut(4, 2, 5), Rank(4));
  ASSERT_FALSE(slices);
  EXPECT_THAT(slices.error().message, HasSubstr("2*6 on the source and 2*5 on the target"));
}

/// Replica `r` of a parameter in the data parallel group that begins at `group`.
ParameterMetadata replica(int r, int group, int size) {
  ParameterMetadata m;
  m.name = "w";
  m.owner_rank = Rank(r);
  m.data_parallel_group_ranks = ranks(group, size);
  return m;
}

// utils: "with 4 src DP groups and 128 dst ranks, each src DP group is selected by 32 dst ranks
// (128/4=32)."
TEST(RoundRobinDp, spreads_destinations_over_source_groups) {
  std::vector<ParameterMetadata> all;
  for (int g : {2, 0, 3, 1})
    for (int i = 0; i < 2; ++i) all.push_back(replica(g * 2 + i, g * 2, 2));
  std::vector<const ParameterMetadata*> sources;
  for (const auto& m : all) sources.push_back(&m);
  std::map<int, int> taken, owners;
  for (int dst = 0; dst < 128; ++dst) {
    const auto& chosen = round_robin_dp(sources, Rank(dst));
    ++taken[(*chosen.data_parallel_group_ranks)[0].value()];
    ++owners[chosen.owner_rank.value()];
    EXPECT_EQ((*chosen.data_parallel_group_ranks)[0].value(), dst % 4 * 2);
  }
  for (const auto& [group, count] : taken) EXPECT_EQ(count, 32) << group;
  // utils: "Within the chosen DP group we further cycle across available metadata entries"
  for (const auto& [owner, count] : owners) EXPECT_EQ(count, 16) << owner;
  EXPECT_EQ(round_robin_dp(sources, Rank(4)).owner_rank, Rank(1)) << "group 0, entry 1";
}

TEST(RoundRobinDp, of_one_group_the_first_entry_is_taken) {
  const std::vector<ParameterMetadata> all{replica(3, 0, 4), replica(1, 0, 4)};
  const std::vector<const ParameterMetadata*> sources{&all[0], &all[1]};
  for (int dst = 0; dst < 5; ++dst) EXPECT_EQ(&round_robin_dp(sources, Rank(dst)), &all[0]);
}

ParameterMetadata expert(int owner, int first, int size) {
  ParameterMetadata m = replica(owner, owner, 1);
  m.is_ep = true;
  m.expert_parallel_group_ranks = ranks(first, size);
  return m;
}

// utils: "dst EP local 0 uses src EP local 0 (same global experts)"
TEST(FilterByEpLocalRank, equal_sizes_keep_the_sources_at_the_same_position) {
  std::vector<ParameterMetadata> all;
  for (int r = 0; r < 16; ++r) all.push_back(expert(r, r / 8 * 8, 8));
  const auto kept = filter_by_ep_local_rank(all, expert(21, 16, 8), Rank(21));
  ASSERT_TRUE(kept);
  ASSERT_EQ(kept->size(), 2U);
  EXPECT_EQ((*kept)[0]->owner_rank, Rank(5));
  EXPECT_EQ((*kept)[1]->owner_rank, Rank(13));
}

// utils: "When EP sizes differ (resharding), expert matching is handled via resolved_name and no
// filter is applied here."
TEST(FilterByEpLocalRank, other_sizes_keep_all) {
  std::vector<ParameterMetadata> all;
  for (int r = 0; r < 8; ++r) all.push_back(expert(r, 0, 8));
  EXPECT_EQ(filter_by_ep_local_rank(all, expert(24, 16, 16), Rank(24))->size(), 8U);
  EXPECT_EQ(filter_by_ep_local_rank(all, replica(24, 24, 1), Rank(24))->size(), 8U);
  std::vector<ParameterMetadata> dense{replica(0, 0, 1)};
  EXPECT_EQ(filter_by_ep_local_rank(dense, expert(24, 24, 1), Rank(24))->size(), 1U);
}

TEST(FilterByEpLocalRank, says_what_there_is_where_nothing_matches) {
  const std::vector<ParameterMetadata> all{expert(0, 0, 2)};
  const auto kept = filter_by_ep_local_rank(all, expert(5, 4, 2), Rank(5));
  ASSERT_FALSE(kept);
  EXPECT_THAT(kept.error().message, HasSubstr("no source at position 1"));
  EXPECT_THAT(kept.error().message, HasSubstr("there are rank 0 at 0"));
}

// utils: "Selection prefers a local copy when dst_rank itself owns a source replica, then
// round-robins across source DP groups to balance load."
TEST(SelectSrcMetadataBalanced, prefers_its_own_replica_then_takes_turns) {
  const std::vector<ParameterMetadata> all{replica(0, 0, 1), replica(1, 1, 1), replica(2, 2, 1)};
  EXPECT_EQ((*select_src_metadata_balanced(all, replica(2, 2, 1), Rank(2)))->owner_rank, Rank(2));
  EXPECT_EQ((*select_src_metadata_balanced(all, replica(7, 7, 1), Rank(7)))->owner_rank, Rank(1));
  EXPECT_FALSE(select_src_metadata_balanced({}, replica(7, 7, 1), Rank(7)));
}

TEST(SelectSrcMetadataBalanced, its_own_replica_counts_only_where_it_has_the_same_experts) {
  const std::vector<ParameterMetadata> all{expert(0, 0, 2), expert(1, 0, 2)};
  // Rank 0 is second in the destination's group: rank 1 has its experts.
  auto dst = expert(0, 0, 2);
  dst.expert_parallel_group_ranks =
      std::make_shared<const std::vector<Rank>>(std::vector<Rank>{Rank(1), Rank(0)});
  EXPECT_EQ((*select_src_metadata_balanced(all, dst, Rank(0)))->owner_rank, Rank(1));
}

// utils: "The selected metadata supplies topology (TP/EP/DP group ranks) to the LCM planner."
TEST(SelectSrcMetadataBalanced, what_it_selects_is_what_the_planner_reads_from) {
  // Two source replicas of two members, [0, 1] and [2, 3]; three destination members from 4.
  std::vector<ParameterMetadata> all;
  for (int owner = 0; owner < 4; ++owner) {
    all.push_back(cut(owner / 2 * 2, 2, 6));
    all.back().owner_rank = Rank(owner);
    all.back().data_parallel_group_ranks = ranks(owner, 1);
  }
  const auto dst = cut(4, 3, 4);
  for (int me = 4; me < 7; ++me) {
    const ParameterMetadata& chosen = **select_src_metadata_balanced(all, dst, Rank(me));
    const int first = chosen.owner_rank.value() / 2 * 2;
    const auto slices = *determine_source_ranks_for_dst_param("w", chosen, dst, Rank(me));
    EXPECT_EQ(slices, tiled(cut(first, 2, 6), dst, me));
    for (const SourceSlice& s : slices) EXPECT_EQ(s.src_rank.value() / 2 * 2, first);
  }
}

// planner: "we pick a source rank from the source DP group in a deterministic round-robin manner
// based on the receiver's global rank for better load distribution."
TEST(FinalizeDpTransfers, receivers_take_turns_over_the_sources_that_are_chosen_for_them) {
  std::vector<ParameterMetadata> all;
  for (int owner = 0; owner < 4; ++owner) all.push_back(cut(owner, 1, 6));
  std::map<int, int> reads;
  for (int me = 4; me < 12; ++me) {
    const auto dst = cut(me, 1, 6);
    for (int again = 0; again < 2; ++again) {
      const auto& chosen = **select_src_metadata_balanced(all, dst, Rank(me));
      const auto slices = *finalize_dp_transfers("w", chosen, dst, Rank(me));
      EXPECT_EQ(slices, (std::vector{rows(me % 4, 0, 0, 6)}));
      ++reads[slices[0].src_rank.value()];
    }
  }
  EXPECT_EQ(reads, (std::map<int, int>{{0, 4}, {1, 4}, {2, 4}, {3, 4}}));
}

}  // namespace
}  // namespace reshard::megatron
