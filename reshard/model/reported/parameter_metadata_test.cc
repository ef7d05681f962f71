// SPDX-License-Identifier: Apache-2.0
// Protects: how local names become names that all ranks agree on, as Megatron's resharding does.
#include "reshard/model/reported/parameter_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard {
namespace {

using ::testing::HasSubstr;

GroupRanks group(std::initializer_list<int> ranks) {
  std::vector<Rank> out;
  for (int r : ranks) out.emplace_back(r);
  return std::make_shared<const std::vector<Rank>>(std::move(out));
}

ParameterMetadata expert(std::string name, int rank) {
  ParameterMetadata m;
  m.name = std::move(name);
  m.is_ep = true;
  m.num_experts = 8;
  m.owner_rank = Rank(rank);
  m.expert_parallel_group_ranks = group({3, 5, 4, 9});
  return m;
}

TEST(LayerPrefix, layer_numbers_count_from_one) {
  LayerPrefixMap map;
  add_layer_module(map, "decoder.layers.0", 17);
  add_layer_module(map, "decoder", 3);  // no number: not a layer of a list
  EXPECT_EQ(map.size(), 1u);
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.0.mlp.weight", map),
            "decoder.layers.16.mlp.weight");
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.0", map), "decoder.layers.16");
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.01.x", map), "decoder.layers.01.x");
  EXPECT_EQ(resolve_global_layer_number_in_name("output_layer.weight", map), "output_layer.weight");
}

TEST(LayerPrefix, the_longest_prefix_wins) {
  LayerPrefixMap map;
  add_layer_module(map, "mtp.layers.0", 1);
  add_layer_module(map, "mtp.layers.0.layer.layers.0", 5);
  EXPECT_EQ(resolve_global_layer_number_in_name("mtp.layers.0.layer.layers.0.w", map),
            "mtp.layers.0.layer.layers.4.w");
  EXPECT_EQ(resolve_global_layer_number_in_name("mtp.layers.0.layer.x", map),
            "mtp.layers.0.layer.x");
}

TEST(ExpertIndex, is_found_in_grouped_and_sequential_names) {
  EXPECT_EQ(detect_expert_index_from_param_name("mlp.experts.linear_fc1.weight12"), 12);
  EXPECT_EQ(detect_expert_index_from_param_name("mlp.experts.linear_fc2.bias3"), 3);
  EXPECT_EQ(detect_expert_index_from_param_name("mlp.experts.local_experts.7.linear_fc1.weight"),
            7);
  for (const char* name : {"mlp.linear_fc1.weight", "layers.3.mlp.weight_x", "bias", "weight1a"})
    EXPECT_EQ(detect_expert_index_from_param_name(name), std::nullopt) << name;
}

TEST(ResolvedName, experts_count_over_the_group_in_its_own_order) {
  auto m = expert("mlp.experts.linear_fc1.weight1", 4);  // third of four, two experts each
  ASSERT_TRUE(assign_ep_resolved_name_inplace(m).has_value());
  EXPECT_EQ(m.resolved_name, "mlp.experts.linear_fc1.weight5");
  EXPECT_EQ(m.global_expert_index, 5);
  auto s = expert("layers.0.mlp.experts.local_experts.0.linear_fc2.weight", 9);
  ASSERT_TRUE(assign_resolved_name_inplace(s, {{"layers.0", "layers.8"}}).has_value());
  EXPECT_EQ(s.resolved_name, "layers.8.mlp.experts.local_experts.6.linear_fc2.weight");
}

TEST(ResolvedName, is_the_name_where_nothing_is_local) {
  ParameterMetadata m;
  m.name = "decoder.final_layernorm.weight3";  // looks like an expert's but is not is_ep
  ASSERT_TRUE(assign_ep_resolved_name_inplace(m).has_value());
  EXPECT_EQ(m.resolved_name, m.name);
  auto fused = expert("mlp.experts.weights", 3);
  ASSERT_TRUE(assign_ep_resolved_name_inplace(fused).has_value());
  EXPECT_EQ(fused.resolved_name, fused.name);
  EXPECT_EQ(fused.global_expert_index, std::nullopt);
}

TEST(ResolvedName, errors_name_the_parameter) {
  auto outside = expert("experts.weight0", 7);
  EXPECT_THAT(assign_ep_resolved_name_inplace(outside).error().message,
              HasSubstr("'experts.weight0': rank 7 is not in its expert parallel group"));
  auto beyond = expert("experts.weight2", 3);
  EXPECT_THAT(assign_ep_resolved_name_inplace(beyond).error().message, HasSubstr("beyond the 2"));
  auto uneven = expert("experts.weight0", 3);
  uneven.num_experts = 6;
  EXPECT_THAT(assign_ep_resolved_name_inplace(uneven).error().message,
              HasSubstr("4 ranks does not divide 6 experts"));
  auto unknown = expert("experts.weight0", 3);
  unknown.num_experts = std::nullopt;
  EXPECT_THAT(assign_ep_resolved_name_inplace(unknown).error().message,
              HasSubstr("needs num_experts"));
}

TEST(ShardingDescriptor, needs_conserved_sizes) {
  ParameterMetadata src, dst;
  src.name = dst.name = "fc1.weight";
  src.shape = {8, 4};
  dst.shape = {4, 4};
  src.is_tp = dst.is_tp = true;
  src.partition_stride = 2;
  src.tensor_parallel_group_ranks = group({0});
  dst.tensor_parallel_group_ranks = group({0, 1});
  const auto d = sharding_descriptor(src, dst);
  ASSERT_TRUE(d.has_value() && d->has_value());
  EXPECT_EQ((*d)->src_stride, 2);
  EXPECT_EQ((*d)->dst_dim_ranks.size(), 2u);
  dst.shape = {8, 4};
  EXPECT_THAT(sharding_descriptor(src, dst).error().message,
              HasSubstr("'fc1.weight': dimension 0 is 1*8 on the source and 2*8 on the target"));
  src.is_tp = dst.is_tp = false;
  EXPECT_FALSE(sharding_descriptor(src, dst)->has_value());
}

}  // namespace
}  // namespace reshard
