// SPDX-License-Identifier: Apache-2.0
// Protects: the metadata that a rank reports of a parameter, and the names that ranks agree on, are
// those of the source document core.resharding.utils, sentence by sentence.
#include "reshard/megatron/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard::megatron {
namespace {

using ::testing::HasSubstr;

GroupRanks ranks(std::initializer_list<int> values) {
  std::vector<Rank> out;
  for (int v : values) out.emplace_back(v);
  return std::make_shared<const std::vector<Rank>>(out);
}

ProcessGroups groups() {
  return {ranks({0, 1}), ranks({0, 2}), ranks({0, 2}), ranks({0}), ranks({0})};
}

Tensor weight(ParameterAttributes attributes = {}) {
  Tensor t;
  t.view = {nullptr, DType::bf16, {8, 4}, {4, 1}};
  t.attributes = std::move(attributes);
  return t;
}

ParameterMetadata extracted(const Tensor& t, const std::string& name, const ProcessGroups& pg,
                            const ExtractOptions& options = {}, Rank owner = Rank(0)) {
  auto meta = extract_param_metadata(t, name, owner, pg, options);
  EXPECT_TRUE(meta.has_value()) << meta.error().message;
  return *std::move(meta);
}

TEST(ParameterMetadata, has_the_documented_defaults) {
  const ParameterMetadata m;
  EXPECT_FALSE(m.is_tp);
  EXPECT_EQ(m.partition_dim, 0);
  EXPECT_EQ(m.partition_stride, 1);
  EXPECT_EQ(m.partition_sizes, std::nullopt);
  EXPECT_FALSE(m.is_ep);
  EXPECT_EQ(m.num_experts, std::nullopt);
  EXPECT_EQ(m.tensor_parallel_group_ranks, nullptr);
  EXPECT_EQ(m.expert_parallel_group_ranks, nullptr);
  EXPECT_EQ(m.data_parallel_group_ranks, nullptr);
  EXPECT_EQ(m.pipeline_parallel_group_ranks, nullptr);
  EXPECT_EQ(m.global_expert_index, std::nullopt);
}

// utils: "Extract metadata from a parameter for cross-rank communication."
TEST(ExtractParamMetadata, takes_name_shape_dtype_and_partition_from_the_parameter) {
  const auto m = extracted(weight({.tensor_model_parallel = true,
                                   .partition_dim = 1,
                                   .partition_stride = 2,
                                   .partition_sizes = std::vector<Index>{1, 3}}),
                           "linear.weight", groups());
  EXPECT_EQ(m.name, "linear.weight");
  EXPECT_EQ(m.resolved_name, "linear.weight");
  EXPECT_EQ(m.shape, (Dims{8, 4}));
  EXPECT_EQ(m.dtype, DType::bf16);
  EXPECT_EQ(m.element_size, 2);
  EXPECT_TRUE(m.is_tp);
  EXPECT_EQ(m.partition_dim, 1);
  EXPECT_EQ(m.partition_stride, 2);
  EXPECT_EQ(m.partition_sizes, (std::vector<Index>{1, 3}));
  EXPECT_EQ(m.owner_rank, Rank(0));
  EXPECT_EQ(*m.tensor_parallel_group_ranks, *ranks({0, 1}));
  EXPECT_EQ(*m.pipeline_parallel_group_ranks, *ranks({0, 2}));
  EXPECT_EQ(*m.data_parallel_group_ranks, *ranks({0}));
  EXPECT_EQ(m.expert_parallel_group_ranks, nullptr);
}

TEST(ExtractParamMetadata, a_parameter_that_is_not_allreduced_is_an_experts) {
  const auto m = extracted(weight({.allreduce = false}), "experts.linear_fc1.weight1", groups(),
                           {.num_experts = 8});
  EXPECT_TRUE(m.is_ep);
  EXPECT_EQ(*m.expert_parallel_group_ranks, *ranks({0, 2}));
  EXPECT_EQ(m.num_experts, 8);
  EXPECT_FALSE(extracted(weight(), "linear.weight", groups()).is_ep);
}

TEST(ExtractParamMetadata, an_experts_tensor_group_is_the_expert_tp_group_if_there_is_one) {
  ProcessGroups pg = groups();
  const Tensor t = weight({.allreduce = false});
  const std::string name = "experts.linear_fc1.weight1";
  EXPECT_EQ(*extracted(t, name, pg, {.num_experts = 8}).tensor_parallel_group_ranks, *ranks({0}));
  pg.expt_tp = nullptr;
  EXPECT_EQ(*extracted(t, name, pg, {.num_experts = 8}).tensor_parallel_group_ranks,
            *ranks({0, 1}));
}

TEST(ExtractParamMetadata, an_experts_parameter_is_tp_where_its_tensor_group_has_several_ranks) {
  ProcessGroups pg = groups();
  const std::string name = "experts.linear_fc1.weight1";
  EXPECT_FALSE(extracted(weight({.allreduce = false}), name, pg, {.num_experts = 8}).is_tp);
  pg.expt_tp = ranks({0, 1});
  EXPECT_TRUE(extracted(weight({.allreduce = false}), name, pg, {.num_experts = 8}).is_tp);
  // Found by its name where all ranks share the experts.
  EXPECT_TRUE(extracted(weight(), name, pg, {.num_experts = 8}).is_tp);
  EXPECT_FALSE(extracted(weight(), name, pg).is_tp) << "a dense model has no experts";
  EXPECT_FALSE(extracted(weight(), "mlp.linear_fc1.weight", pg, {.num_experts = 8}).is_tp);
}

TEST(ExtractParamMetadata, expert_tensor_parallelism_cuts_fc2_by_columns_whatever_attributes_say) {
  ProcessGroups pg = groups();
  pg.expt_tp = ranks({0, 1});
  const auto dim = [&](const std::string& name, ParameterAttributes attributes) {
    attributes.allreduce = false;
    return extracted(weight(std::move(attributes)), name, pg, {.num_experts = 8}).partition_dim;
  };
  for (const ParameterAttributes& said :
       {ParameterAttributes{}, ParameterAttributes{.partition_dim = -1},
        ParameterAttributes{.tensor_model_parallel = true},
        ParameterAttributes{.tensor_model_parallel = true, .partition_dim = 1}}) {
    EXPECT_EQ(dim("mlp.experts.linear_fc2.weight3", said), 1);
    EXPECT_EQ(dim("mlp.experts.local_experts.3.linear_fc2.weight", said), 1);
  }
  EXPECT_EQ(dim("mlp.experts.linear_fc1.weight3", {}), 0);
  EXPECT_EQ(dim("mlp.experts.linear_fc1.weight3", {.partition_dim = -1}), 0);
  EXPECT_EQ(dim("mlp.experts.my_linear_fc2.weight3", {}), 0);
}

TEST(ExtractParamMetadata, a_parameter_that_is_not_tp_still_carries_the_tp_group) {
  const auto m = extracted(weight(), "norm.weight", groups());
  EXPECT_FALSE(m.is_tp);
  EXPECT_EQ(*m.tensor_parallel_group_ranks, *ranks({0, 1}));
}

// refit: "Offsets applied to local process group ranks so that metadata contains globally unique
// rank IDs across independent torch.distributed worlds."
TEST(ExtractParamMetadata, rank_offset_is_added_to_the_ranks_of_groups_and_not_to_the_owner) {
  const auto m = extracted(weight(), "norm.weight", groups(), {.rank_offset = 8}, Rank(8));
  EXPECT_EQ(*m.tensor_parallel_group_ranks, *ranks({8, 9}));
  EXPECT_EQ(*m.pipeline_parallel_group_ranks, *ranks({8, 10}));
  EXPECT_EQ(*m.data_parallel_group_ranks, *ranks({8}));
  EXPECT_EQ(m.owner_rank, Rank(8));
}

TEST(ExtractParamMetadata, without_a_pipeline_group_it_is_the_whole_world) {
  ProcessGroups pg = groups();
  pg.pp = nullptr;
  const auto m = extracted(weight(), "norm.weight", pg, {.rank_offset = 4, .world_size = 3});
  EXPECT_EQ(*m.pipeline_parallel_group_ranks, *ranks({4, 5, 6}));
}

// utils: "params sharing the same process group reuse one object"
TEST(ExtractParamMetadata, rank_list_cache_makes_equal_lists_one_object) {
  RankListCache lists;
  ProcessGroups pg = groups();
  const auto a = extracted(weight(), "a", pg, {.rank_list_cache = &lists});
  pg.tp = ranks({0, 1});
  const auto b = extracted(weight(), "b", pg, {.rank_list_cache = &lists});
  EXPECT_EQ(a.tensor_parallel_group_ranks, b.tensor_parallel_group_ranks);
  EXPECT_EQ(lists.size(), 3U) << "tp, pp, dp";
}

TEST(ExtractParamMetadata, what_is_missing_is_named) {
  ProcessGroups pg = groups();
  pg.dp = nullptr;
  const auto no_dp = extract_param_metadata(weight(), "norm.weight", Rank(0), pg);
  ASSERT_FALSE(no_dp);
  EXPECT_THAT(no_dp.error().message, HasSubstr("'norm.weight': pg_collection.dp is missing"));
  pg = groups();
  pg.ep = nullptr;
  EXPECT_FALSE(extract_param_metadata(weight({.allreduce = false}), "weight0", Rank(0), pg));
  EXPECT_FALSE(extract_param_metadata(weight(), "w", Rank(0), groups(), {.rank_offset = -1}));
}

// utils: "_get_rank_in_group"
TEST(RankInGroup, is_a_position_or_an_error_that_names_both) {
  EXPECT_EQ(*rank_in_group(Rank(5), *ranks({4, 5})), 1);
  const auto missing = rank_in_group(Rank(3), *ranks({4, 5}));
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("rank 3 is not in process group [4, 5]"));
}

// utils: "Extract expert index from parameter name for TEGroupedMLP per-expert tensors."
TEST(DetectExpertIndex, reads_weightK_and_biasK) {
  EXPECT_EQ(detect_expert_index_from_param_name("mlp.experts.linear_fc1.weight12"), 12);
  EXPECT_EQ(detect_expert_index_from_param_name("mlp.experts.linear_fc1.bias3"), 3);
  EXPECT_EQ(detect_expert_index_from_param_name("mlp.experts.linear_fc1.weight"), std::nullopt);
  EXPECT_EQ(detect_expert_index_from_param_name("weights3.linear"), std::nullopt);
}

ParameterMetadata expert(const std::string& name, Rank owner) {
  ParameterMetadata m;
  m.name = name;
  m.is_ep = true;
  m.num_experts = 8;
  m.owner_rank = owner;
  m.expert_parallel_group_ranks = ranks({0, 1});
  return m;
}

// utils: "rank 1 has "weight0" locally, but it's actually global expert 4"
TEST(AssignEpResolvedName, makes_local_expert_numbers_global) {
  ParameterMetadata m = expert("experts.weight0", Rank(1));
  ASSERT_TRUE(assign_ep_resolved_name_inplace(m));
  EXPECT_EQ(m.resolved_name, "experts.weight4");
  EXPECT_EQ(m.global_expert_index, 4);
}

// utils: "Sets meta.resolved_name (defaults to base_name/meta.name for non-EP). Sets
// meta.global_expert_index for per-expert parameters; otherwise leaves it as None."
TEST(AssignEpResolvedName, leaves_other_names_as_they_are) {
  ParameterMetadata dense;
  dense.name = "linear.weight0";
  dense.global_expert_index = 3;
  ASSERT_TRUE(assign_ep_resolved_name_inplace(dense));
  EXPECT_EQ(dense.resolved_name, "linear.weight0");
  EXPECT_EQ(dense.global_expert_index, std::nullopt);
  ASSERT_TRUE(assign_ep_resolved_name_inplace(dense, "other"));
  EXPECT_EQ(dense.resolved_name, "other");
  ParameterMetadata fused = expert("experts.weight", Rank(1));
  ASSERT_TRUE(assign_ep_resolved_name_inplace(fused));
  EXPECT_EQ(fused.resolved_name, "experts.weight");
  EXPECT_EQ(fused.global_expert_index, std::nullopt);
}

// utils: "It rewrites PP layer indices to global layer indices (when layer_module_prefix_map is
// provided) and rewrites EP per-expert indices (weightK/biasK) to global expert indices."
TEST(AssignResolvedName, makes_layers_and_experts_global) {
  ParameterMetadata m = expert("decoder.layers.0.mlp.experts.linear_fc1.bias1", Rank(1));
  ASSERT_TRUE(assign_resolved_name_inplace(m, {{"decoder.layers.0", "decoder.layers.16"}}));
  EXPECT_EQ(m.resolved_name, "decoder.layers.16.mlp.experts.linear_fc1.bias5");
  EXPECT_EQ(m.name, "decoder.layers.0.mlp.experts.linear_fc1.bias1");
  ASSERT_TRUE(assign_resolved_name_inplace(m));
  EXPECT_EQ(m.resolved_name, "decoder.layers.0.mlp.experts.linear_fc1.bias5");
}

// utils: ""decoder.layers.0" -> "decoder.layers.16" (if layer_number == 17)"
TEST(LayerPrefixMap, comes_from_the_layer_numbers_of_modules) {
  Module m;
  m.submodule("decoder.layers.0").layer_number = 17;
  m.submodule("decoder.layers.1").layer_number = 18;
  m.submodule("decoder.layers.1.self_attention").layer_number = 18;  // no number at its end
  m.submodule("decoder.layers.2");                                   // no layer_number
  EXPECT_EQ(build_layer_module_prefix_map(m),
            (LayerPrefixMap{{"decoder.layers.0", "decoder.layers.16"},
                            {"decoder.layers.1", "decoder.layers.17"}}));
}

// utils: "Perform a longest-prefix match replacement so we only rewrite the module path portion."
TEST(ResolveGlobalLayerNumber, replaces_the_longest_prefix_of_whole_parts) {
  const LayerPrefixMap map{{"decoder.layers.1", "decoder.layers.9"},
                           {"decoder.layers.1.inner.layers.0", "decoder.layers.1.inner.layers.4"}};
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.1.self_attention.weight", map),
            "decoder.layers.9.self_attention.weight");
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.1.inner.layers.0.w", map),
            "decoder.layers.1.inner.layers.4.w");
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.10.w", map), "decoder.layers.10.w");
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.1", map), "decoder.layers.9");
  EXPECT_EQ(resolve_global_layer_number_in_name("decoder.layers.1.w", {}), "decoder.layers.1.w");
}

TEST(ModuleMetadata, reports_parameters_and_persistent_buffers_and_needs_groups) {
  Module m;
  std::array<std::byte, 64> memory;
  const auto view = *tensor_view(memory, DType::bf16, {8, 4});
  Module& layer = m.submodule("decoder.layers.0");
  layer.layer_number = 3;
  ASSERT_TRUE(layer.register_parameter("w", view));
  ASSERT_TRUE(layer.register_buffer("b", view));
  ASSERT_TRUE(layer.register_buffer("gone", view, false));
  EXPECT_FALSE(module_metadata(m, Rank(0), {}));
  m.pg_collection = groups();
  const auto all = module_metadata(m, Rank(0), {});
  ASSERT_TRUE(all) << all.error().message;
  ASSERT_EQ(all->parameters.size(), 2U);
  EXPECT_EQ(all->parameters[0].resolved_name, "decoder.layers.2.w");
  EXPECT_EQ(all->parameters[1].resolved_name, "decoder.layers.2.b");
  EXPECT_EQ(all->parameters[0].tensor_parallel_group_ranks,
            all->parameters[1].tensor_parallel_group_ranks);
}

}  // namespace
}  // namespace reshard::megatron
