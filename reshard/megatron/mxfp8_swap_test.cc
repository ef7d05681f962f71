// SPDX-License-Identifier: Apache-2.0
// Protects: a target that keeps its weights as MXFP8 gets, on every route, the bytes of quantising
// the whole plain weights, at unchanged addresses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/megatron/swap_testutil.h"

namespace reshard::megatron {
namespace {

using ::testing::HasSubstr;

/// Columns of 64 and 96: halves of the second cut a block of 32.
ModelConfig in_blocks(ModelConfig c) {
  c.hidden_size = 64;
  c.head_dim = 8;
  c.intermediate_size = 96;
  c.num_hidden_layers = 2;
  c.layers.resize(2);
  return c;
}

ModelConfig blocks() { return in_blocks(tiny_dense()); }

/// Experts as well; every linear weight's columns are a multiple of 32 at tp=1.
ModelConfig expert_blocks() {
  ModelConfig c = in_blocks(tiny_moe());
  c.moe_intermediate_size = 32;
  return c;
}

/// The names of the parameters that are MXFP8 now.
std::vector<std::string> mxfp8_names(Module& module) {
  std::vector<std::string> out;
  for (const NamedTensor& t : named_parameters(module))
    if (t.tensor->mxfp8 != nullptr) out.push_back(t.name);
  return out;
}

bool equal(const TensorView& a, const TensorView& b) {
  return std::ranges::equal(bytes_of(a), bytes_of(b));
}

class Mxfp8Swap : public ::testing::TestWithParam<std::tuple<SwapLayouts, bool>> {
 protected:
  static const SwapLayouts& layouts() { return std::get<0>(GetParam()); }
  static bool swizzled() { return std::get<1>(GetParam()); }

  static void run(const std::function<void(SwapRank&, RankEnds&)>& body) {
    const auto ended = run_group_as_threads<InprocGroup>(layouts().ranks, [&](RankEnds& ends) {
      SwapRank me(layouts(), ends, {.mark_fp8 = true});
      if (me.target) {
        me.target->module().config->transformer_impl = "inference_optimized";
        me.target->module().config->fp8_recipe = "mxfp8";
        me.target->module().config->swizzled_scales = swizzled();
      }
      body(me, ends);
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
      clear_all_caches(*me.context);
    });
    EXPECT_EQ(outcome(ended), "");
  }

  static Result<> prepare(SwapRank& me) {
    return prepare_swap_model_weights(me.src(), me.tgt(), me.arguments, *me.context);
  }

  /// A refit of these values; every weight is then what its plain values quantise to.
  static void expect_refit(SwapRank& me, RankEnds& ends, std::uint64_t seed,
                           const RefitMethod& method = "inproc") {
    const Oracle oracle{OracleKind::weights, seed};
    if (me.source) me.source->fill(oracle);
    if (me.target) me.target->clear();
    ASSERT_EQ(outcome(me.swap(method)), "");
    if (!me.target) return;
    const auto names = mxfp8_names(me.target->module());
    EXPECT_GE(names.size(), 8U);
    EXPECT_EQ(me.target->wrong(oracle, names), "") << "what stays plain";
    SwapRank plain(layouts(), ends);
    plain.target->fill(oracle);
    const auto want = get_refit_tensor_dict(plain.target->module());
    for (const std::string& name : names) {
      const auto small = *from_bf16((*want->find(name))->view, swizzled());
      const auto& got = (*get_refit_tensor_dict(me.target->module())->find(name))->mxfp8;
      EXPECT_TRUE(equal(got->data, small->data)) << name;
      EXPECT_TRUE(equal(got->scale, small->scale)) << name;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Layouts, Mxfp8Swap,
    ::testing::Combine(
        ::testing::Values(
            SwapLayouts{"collocated_tp2_tp1", blocks(), sized(2, ""), sized(1, ""), 2},
            SwapLayouts{"collocated_tp1_tp1", blocks(), sized(1, ""), sized(1, ""), 1},
            SwapLayouts{"disjoint_tp2_tp1", blocks(), sized(2, ""), sized(1, "offset=2"), 3},
            SwapLayouts{"disjoint_tp4_tp1", blocks(), sized(4, ""), sized(1, "offset=4"), 5},
            SwapLayouts{"experts_ep2_tp1", expert_blocks(), sized(2, "ep=2,etp=2,dp=2"),
                        sized(1, "ep=1,etp=1"), 4}),
        ::testing::Bool()),
    [](const auto& test) {
      return std::get<0>(test.param).name + (std::get<1>(test.param) ? "_tiles" : "_rows");
    });

// refit: "computes which parameters are eligible for MXFP8 conversion, quantizes the target decoder
// weights to persistent FlashInfer MXFP8Tensor buffers (whose addresses are later baked into CUDA
// graphs), creates an MXFP8ReshardTransform that subsequent swap_model_weights calls use
// automatically."
TEST_P(Mxfp8Swap, prepare_quantises_the_target_and_swaps_write_it_in_place) {
  run([](SwapRank& me, RankEnds& ends) {
    if (me.target) me.target->fill({OracleKind::weights, 77});
    ASSERT_EQ(outcome(prepare(me)), "");
    std::map<std::string, std::pair<const std::byte*, const std::byte*>> addresses;
    if (me.target)
      for (const std::string& name : mxfp8_names(me.target->module())) {
        const Tensor& t = **get_refit_tensor_dict(me.target->module())->find(name);
        EXPECT_TRUE(name.starts_with("decoder.")) << name;
        EXPECT_TRUE(equal(t.mxfp8->data, (*from_bf16(t.view, swizzled()))->data)) << name;
        addresses[name] = {t.mxfp8->data.data, t.mxfp8->scale.data};
      }
    EXPECT_EQ(addresses.empty(), me.target == nullptr);
    for (std::uint64_t seed : {1U, 2U}) expect_refit(me, ends, seed);
    expect_refit(me, ends, 3, *get_or_create_service("inproc", nullptr, *me.context));
    for (const auto& [name, at] : addresses) {
      const Tensor& t = **get_refit_tensor_dict(me.target->module())->find(name);
      EXPECT_EQ(at, (std::pair<const std::byte*, const std::byte*>(t.mxfp8->data.data,
                                                                   t.mxfp8->scale.data)));
    }
    EXPECT_EQ(me.context->plans_built(), 1U);
  });
}

// refit: "Idempotent: skips re-setup if plan.transform is already populated."
TEST_P(Mxfp8Swap, preparing_again_changes_nothing) {
  run([](SwapRank& me, RankEnds& ends) {
    ASSERT_EQ(outcome(prepare(me)), "");
    const PlanCacheKey key = build_plan_cache_key(*unwrap_model_cores(me.src(), me.tgt(), nullptr),
                                                  me.group, me.arguments);
    const auto transform = me.context->find_plan(key)->transform;
    EXPECT_EQ(transform != nullptr, me.target != nullptr);
    expect_refit(me, ends, 1);
    const auto names = me.target ? mxfp8_names(me.target->module()) : std::vector<std::string>{};
    ASSERT_EQ(outcome(prepare(me)), "");
    EXPECT_EQ(me.context->find_plan(key)->transform, transform);
    expect_refit(me, ends, 2);
    // Plans that were thrown away do not take the weights with them.
    clear_plan_cache(*me.context);
    expect_refit(me, ends, 3);
    if (me.target) {
      EXPECT_EQ(mxfp8_names(me.target->module()), names);
    }
  });
}

// refit: "created and cached by a prior prepare_swap_model_weights call for the same model pair":
// another pair of the same context goes plain.
TEST_P(Mxfp8Swap, another_pair_of_the_context_is_left_plain) {
  run([](SwapRank& me, RankEnds& ends) {
    ASSERT_EQ(outcome(prepare(me)), "");
    SwapRank twin(layouts(), ends);
    twin.begin(9);
    ASSERT_EQ(
        outcome(swap_model_weights(twin.src(), twin.tgt(), "inproc", twin.arguments, *me.context)),
        "");
    EXPECT_EQ(twin.wrong(9), "");
    expect_refit(me, ends, 1);
    EXPECT_EQ(me.context->plans_built(), 2U);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    clear_all_caches(*me.context);
  });
}

// transforms: "convert_on_send=True ... Both sender and receiver must use the transform so that
// tensor counts match." Also on the rank itself, and for slices that cut blocks.
TEST_P(Mxfp8Swap, both_sides_may_convert_on_send) {
  run([](SwapRank& me, RankEnds& ends) {
    ASSERT_EQ(outcome(prepare(me)), "");
    std::set<std::string, std::less<>> names;
    PersistentBuffers buffers;
    for (ModuleUnderTest* model : {me.source.get(), me.target.get()})
      if (model != nullptr)
        for (const NamedTensor& p : named_parameters(model->module()))
          if (p.tensor->attributes.fp8_weight) {
            names.insert(p.name);
            if (p.tensor->mxfp8) buffers[p.name.substr(8)] = p.tensor->mxfp8;
          }
    const auto transform =
        std::make_shared<MXFP8ReshardTransform>(names, buffers, "decoder.", true);
    // refit: a transform that is given explicitly wins over the cached one.
    me.arguments.transform = transform;
    for (std::uint64_t seed : {1U, 2U}) expect_refit(me, ends, seed);
    EXPECT_TRUE(transform->convert_on_send());
  });
}

// transforms: "Both sender and receiver must use the transform so that tensor counts match."
TEST(SwapModelWeights, converting_on_send_on_one_side_alone_is_an_error_on_all) {
  run_job({"", blocks(), sized(1, ""), sized(1, "offset=1"), 2}, [](SwapRank& me, RankEnds&) {
    const std::string name = "decoder.layers.0.mlp.linear_fc2.weight";
    if (me.target)
      me.arguments.transform = std::make_shared<MXFP8ReshardTransform>(
          std::set<std::string, std::less<>>{name},
          PersistentBuffers{{name, *make_mxfp8({64, 96}, false)}}, "", true);
    EXPECT_FALSE(me.swap("inproc"));
  });
}

// transforms: "Quantized parameter types are dequantized to their original precision": a quantised
// source feeds a plain target.
TEST(SwapModelWeights, a_quantised_source_is_sent_as_values) {
  const std::string name = "decoder.layers.0.mlp.linear_fc2.weight";
  run_job({"", blocks(), sized(1, ""), sized(2, "offset=1"), 3}, [&](SwapRank& me, RankEnds&) {
    const Oracle oracle{OracleKind::weights, 5};
    if (me.source) {
      me.source->fill(oracle);
      Tensor& weight = **get_refit_tensor_dict(me.source->module())->find(name);
      weight.mxfp8 = *from_bf16(weight.view, true);
    }
    for (int i = 0; i < 2; ++i) ASSERT_EQ(outcome(me.swap("inproc")), "");
    if (!me.target) return;
    EXPECT_EQ(me.target->wrong(oracle, {name}), "");
    EXPECT_NE(me.target->wrong(oracle), "") << "quantising has changed some values";
    ModuleUnderTest plain(layout_of(sized(1, ""), model_of(blocks()), blocks()), blocks(), Rank(0));
    plain.fill(oracle);
    const Tensor& want = **get_refit_tensor_dict(plain.module())->find(name);
    const OwnedTensor values = *dequantised(**from_bf16(want.view, true));
    const Index half = me.group.rank() == Rank(1) ? 0 : 48;
    OwnedTensor part = *make_tensor(DType::bf16, {64, 48});
    ASSERT_TRUE(copy(*slice(values.view, Box{{0, 64}, {half, half + 48}}), part.view));
    EXPECT_TRUE(equal((*get_refit_tensor_dict(me.target->module())->find(name))->view, part.view));
  });
}

// refit: "Check if a model uses FlashInfer MXFP8 inference and needs weight conversion."
TEST(NeedsMxfp8Conversion, is_what_two_words_of_the_config_say) {
  Module m;
  EXPECT_FALSE(needs_mxfp8_conversion(nullptr));
  EXPECT_FALSE(needs_mxfp8_conversion(&m));
  m.config = TransformerConfig{std::nullopt, "inference_optimized", "mxfp8"};
  EXPECT_TRUE(needs_mxfp8_conversion(&m));
  m.config->fp8_recipe = "delayed";
  EXPECT_FALSE(needs_mxfp8_conversion(&m));
  m.config = TransformerConfig{std::nullopt, "transformer_engine", "mxfp8"};
  EXPECT_FALSE(needs_mxfp8_conversion(&m));
}

/// A model with a weight inside its decoder and one outside, both FP8.
Module two_weights(std::vector<OwnedTensor>& memory) {
  Module m;
  m.config = TransformerConfig{std::nullopt, "inference_optimized", "mxfp8"};
  for (const char* path : {"decoder.layers.0.linear", "head"}) {
    memory.push_back(*make_tensor(DType::bf16, {2, 32}));
    EXPECT_TRUE(
        m.submodule(path).register_parameter("weight", memory.back().view, {.fp8_weight = true}));
  }
  return m;
}

// refit: "Quantizes the target model's decoder weights to FlashInfer MXFP8Tensor", "Builds an
// MXFP8ReshardTransform and attaches it to plan.transform."
TEST(SetupMxfp8TransformOnPlan, takes_the_decoders_weights_by_names_without_decoder) {
  std::vector<OwnedTensor> memory;
  Module m = two_weights(memory);
  ReshardPlan plan;
  ASSERT_TRUE(setup_mxfp8_transform_on_plan(plan, &m, &m));
  EXPECT_THAT(mxfp8_names(m), testing::ElementsAre("decoder.layers.0.linear.weight"));
  const auto transform = std::dynamic_pointer_cast<MXFP8ReshardTransform>(plan.transform);
  ASSERT_NE(transform, nullptr);
  EXPECT_TRUE(transform->should_transform("decoder.layers.0.linear.weight"));
  EXPECT_FALSE(transform->should_transform("head.weight"));
  EXPECT_TRUE(transform->persistent_buffers().contains("layers.0.linear.weight"));
  EXPECT_FALSE(transform->convert_on_send());
  ASSERT_TRUE(setup_mxfp8_transform_on_plan(plan, &m, &m));
  EXPECT_EQ(plan.transform, transform);
}

TEST(SetupMxfp8TransformOnPlan, does_nothing_without_a_target_or_where_no_mxfp8_is_wanted) {
  std::vector<OwnedTensor> memory;
  Module m = two_weights(memory);
  m.config->fp8_recipe = "";
  ReshardPlan plan;
  ASSERT_TRUE(setup_mxfp8_transform_on_plan(plan, &m, &m));
  ASSERT_TRUE(setup_mxfp8_transform_on_plan(plan, nullptr, nullptr));
  EXPECT_EQ(plan.transform, nullptr);
  EXPECT_TRUE(mxfp8_names(m).empty());
}

TEST(PrepareSwapModelWeights, weights_whose_columns_are_no_blocks_are_an_error_on_all) {
  const SwapLayouts odd{"", blocks(), sized(2, ""), sized(2, ""), 2};
  const auto ended = run_group_as_threads<InprocGroup>(2, [&](RankEnds& ends) {
    SwapRank me(odd, ends, {.mark_fp8 = true});
    me.target->module().config->transformer_impl = "inference_optimized";
    me.target->module().config->fp8_recipe = "mxfp8";
    expect_error(prepare_swap_model_weights(me.src(), me.tgt(), me.arguments, *me.context),
                 Code::invalid_argument,
                 {"rank 0: parameter 'decoder.layers.0.mlp.linear_fc2.weight'", "[64, 48]"});
    expect_swap(me, 1);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    clear_all_caches(*me.context);
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard::megatron
