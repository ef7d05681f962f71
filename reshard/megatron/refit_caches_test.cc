// SPDX-License-Identifier: Apache-2.0
// Protects: plan keys, the caches of plans and services, and model cores behave as the source
// document core.resharding.refit says, sentence by sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/megatron/refit.h"
#include "reshard/megatron/swap_testutil.h"

namespace reshard::megatron {
namespace {

// refit: "Extract (TP, PP, EP, DP, expt_tp) sizes from a model core"
TEST(GetConfigTuple, has_the_sizes_of_the_five_groups) {
  const auto ranks = [](int n) {
    return std::make_shared<const std::vector<Rank>>(static_cast<std::size_t>(n));
  };
  Module m;
  m.pg_collection = ProcessGroups{ranks(2), ranks(3), ranks(4), ranks(5), ranks(6)};
  EXPECT_EQ(get_config_tuple(&m), (ConfigTuple{2, 3, 4, 5, 6}));
  m.pg_collection = ProcessGroups{};
  EXPECT_EQ(get_config_tuple(&m), (ConfigTuple{1, 1, 1, 1, 1}));
  EXPECT_EQ(get_config_tuple(nullptr), std::nullopt);
}

// refit: "Build cache key for reshard plan."
TEST(BuildPlanCacheKey, has_all_that_is_documented) {
  run_job(disjoint(), [](SwapRank& me, RankEnds& ends) {
    const PlanCacheKey key = key_of(me);
    EXPECT_EQ(key.rank, ends.rank());
    EXPECT_EQ(key.src_config.has_value(), me.source != nullptr);
    EXPECT_EQ(key.dst_config.has_value(), me.target != nullptr);
    EXPECT_EQ(key.num_experts, me.source || me.target ? std::optional<Index>(8) : std::nullopt);
    EXPECT_EQ(key.src_rank_offset, 0);
    EXPECT_EQ(key.dst_rank_offset, 2);
    EXPECT_EQ(key.world_size, 4);
    EXPECT_EQ(key, key_of(me));
    EXPECT_NE(key, key_of(me, 1)) << "pools have plans of their own";
    me.arguments.dst_rank_offset = 3;
    EXPECT_NE(key, key_of(me)) << "offsets route to other ranks";
  });
}

TEST(BuildPlanCacheKey, tells_model_pairs_of_equal_sizes_apart) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    SwapRank twin(tp2_to_tp1(), ends);
    EXPECT_EQ(key_of(me).src_config, key_of(twin).src_config);
    EXPECT_NE(key_of(me), key_of(twin));
    const PlanCacheKey before = key_of(me);
    std::array<std::byte, 8> memory{};
    ASSERT_TRUE(me.source->module().submodule("decoder").register_parameter(
        "extra", *tensor_view(memory, DType::bf16, {4})));
    invalidate_refit_tensor_cache(me.source->module());
    EXPECT_NE(before, key_of(me)) << "the same modules, with another parameter";
  });
}

TEST(PlanCache, keeps_the_plans_of_two_pairs_of_equal_sizes) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    SwapRank twin(tp2_to_tp1(), ends);
    twin.context.reset();
    for (std::uint64_t seed : {1U, 2U}) {
      expect_swap(me, seed);
      twin.begin(seed + 10);
      ASSERT_EQ(outcome(swap_model_weights(twin.src(), twin.tgt(), "inproc", twin.arguments,
                                           *me.context)),
                "");
      EXPECT_EQ(twin.wrong(seed + 10), "");
      EXPECT_EQ(me.wrong(seed), "") << "the other pair's refit left it alone";
    }
    EXPECT_EQ(me.context->num_plans(), 2U);
    EXPECT_EQ(me.context->plans_built(), 2U);
  });
}

// refit: "Get or create a cached CopyService instance for the given backend."
TEST(GetOrCreateService, makes_one_service_for_each_backend) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    const auto first = get_or_create_service("inproc", nullptr, *me.context);
    ASSERT_TRUE(first) << first.error().message;
    EXPECT_EQ(*get_or_create_service("inproc", &me.group, *me.context), *first);
    const auto other = get_or_create_service("shm", nullptr, *me.context);
    ASSERT_TRUE(other) << other.error().message;
    EXPECT_NE(*other, *first);
    EXPECT_EQ(me.context->num_services(), 2U);
    EXPECT_FALSE(get_or_create_service("smoke", nullptr, *me.context));
    EXPECT_EQ(me.context->num_services(), 2U);
  });
}

// refit: "Services are close()-d first so backends owning GPU buffers (NVSHMEM) release them
// cleanly."
TEST(ClearServiceCache, closes_services_and_forgets_them) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    CopyService* service = *get_or_create_service("shm", nullptr, *me.context);
    std::array<std::byte, 8> memory{};
    const TensorView view = *tensor_view(memory, DType::u8, {8});
    if (ends.rank() == Rank(0)) clear_service_cache(*me.context);
    ASSERT_TRUE(ends.control->barrier(patient()));
    if (ends.rank() == Rank(0)) {
      EXPECT_EQ(me.context->num_services(), 0U);
    } else {
      // The peer's end is closed, so that its messages are given up.
      EXPECT_TRUE(service->submit_recv(view, Rank(0), TaskId{1}));
      EXPECT_FALSE(service->run());
    }
  });
}

// refit: "Call this if you need to invalidate the cache, for example when reinitializing
// distributed state." "Clear both service and plan caches."
TEST(ClearServiceCache, later_refits_make_services_anew) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    expect_swap(me, 1, "shm");
    if (ends.rank() == Rank(1)) clear_service_cache(*me.context);
    expect_swap(me, 2, "shm");
    clear_all_caches(*me.context);
    EXPECT_EQ(me.context->num_services(), 0U);
    EXPECT_EQ(me.context->num_plans(), 0U);
    expect_swap(me, 3, "shm");
  });
}

// refit: "Clear the cached refit plans."
TEST(ClearPlanCache, forgets_plans_on_one_rank_and_all_plan_anew) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    expect_swap(me, 1);
    if (ends.rank() == Rank(0)) {
      clear_plan_cache(*me.context);
      EXPECT_EQ(me.context->num_plans(), 0U);
      EXPECT_EQ(me.context->num_services(), 1U);
    }
    expect_swap(me, 2);
    EXPECT_EQ(me.context->plans_built(), 2U);
    expect_swap(me, 3);
    EXPECT_EQ(me.context->plans_built(), 2U);
  });
}

/// A module with config and groups, of one rank.
Module model(std::optional<Index> num_experts, bool with_dp = true) {
  const auto one = std::make_shared<const std::vector<Rank>>(1);
  Module m;
  m.config = TransformerConfig{num_experts};
  m.pg_collection = ProcessGroups{one, one, one, with_dp ? one : nullptr, one};
  return m;
}

// refit: "Handles list-wrapped modules and None (non-collocated) models."
TEST(UnwrapModelCores, takes_none_modules_lists_and_wrappers) {
  Module src = model(4), tgt = model(6);
  auto core = std::make_shared<Module>(model(8));
  Module wrapper;
  wrapper.is_wrapper = true;
  wrapper.config = TransformerConfig{9};
  ASSERT_TRUE(wrapper.add_child("module", core));
  EXPECT_EQ(unwrap_model_cores(nullptr, nullptr, nullptr)->num_experts, std::nullopt);
  const auto both = unwrap_model_cores(std::vector{&src}, tgt, nullptr);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->src, &src);
  EXPECT_EQ(both->tgt, &tgt);
  EXPECT_EQ(both->num_experts, 4) << "the source's";
  EXPECT_EQ(unwrap_model_cores(nullptr, tgt, nullptr)->num_experts, 6) << "else the target's";
  EXPECT_EQ(unwrap_model_cores(wrapper, nullptr, nullptr)->src, core.get());
  EXPECT_EQ(unwrap_model_cores(wrapper, nullptr, nullptr)->num_experts, 9);
  EXPECT_FALSE(unwrap_model_cores(std::vector<Module*>{}, nullptr, nullptr));
  EXPECT_FALSE(unwrap_model_cores(std::vector{&src, &src}, nullptr, nullptr));
  EXPECT_FALSE(unwrap_model_cores(std::vector<Module*>{nullptr}, nullptr, nullptr));
}

// refit: "Fills in missing DP groups from Megatron's parallel state on the source."
TEST(UnwrapModelCores, fills_in_the_missing_dp_group_of_the_source) {
  Module src = model(std::nullopt, false), tgt = model(std::nullopt, false);
  const auto dp = std::make_shared<const std::vector<Rank>>(std::vector{Rank(0), Rank(3)});
  ASSERT_TRUE(unwrap_model_cores(src, tgt, dp));
  EXPECT_EQ(src.pg_collection->dp, dp);
  EXPECT_EQ(tgt.pg_collection->dp, nullptr);
}

TEST(UnwrapModelCores, a_missing_pg_collection_or_config_is_an_error) {
  Module src = model(4), tgt = model(4);
  tgt.pg_collection.reset();
  expect_error(unwrap_model_cores(src, tgt, nullptr), Code::invalid_argument,
               {"target model has no pg_collection"});
  src.pg_collection.reset();
  expect_error(unwrap_model_cores(src, nullptr, nullptr), Code::invalid_argument,
               {"source model has no pg_collection"});
  Module bare = model(4);
  bare.config.reset();
  EXPECT_FALSE(unwrap_model_cores(bare, nullptr, nullptr));
}

}  // namespace
}  // namespace reshard::megatron
