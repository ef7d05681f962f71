// SPDX-License-Identifier: Apache-2.0
// Protects: the keys quant, quant_grid and quant_skip, what each family quantises, and the shards
// that engines reject.
#include "reshard/model/quant/notation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/held_testutil.h"

namespace reshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<QuantisedLayout> make(const std::string& text, const ModelConfig& c) {
  auto spec = parse_layout(text);
  const auto notation = RESHARD_TRY(take_quant(*spec));
  if (!notation) return fail(Code::invalid_argument, "plain");
  return quantised_as(*notation, layout_of(to_string(*spec), model_of(c), c));
}

std::string error(const std::string& text, const ModelConfig& c) {
  const auto made = make(text, c);
  return made ? "none" : made.error().message;
}

TEST(QuantNotation, keys_are_taken_out_of_the_layouts_own) {
  auto spec = *parse_layout("vllm:tp=2,quant=mxfp8,quant_grid=tensor,quant_skip=o_proj+layers.0.");
  const auto q = **take_quant(spec);
  EXPECT_EQ(to_string(spec), "vllm:tp=2");
  EXPECT_EQ(q.name, "vllm:quant=mxfp8,quant_grid=tensor,quant_skip=o_proj+layers.0.,tp=2");
  EXPECT_EQ(q.format, *quant_format_from_name("mxfp8"));
  EXPECT_EQ(q.grid, BlockGrid::tensor);
  EXPECT_THAT(q.skip, ElementsAre("o_proj", "layers.0."));
  EXPECT_FALSE(take_quant(spec)->has_value());
  EXPECT_EQ((QuantNotation{"hf", "", {}, {}, {}}.effective_grid()), BlockGrid::tensor);
  EXPECT_EQ((QuantNotation{"vllm", "", {}, {}, {}}.effective_grid()), BlockGrid::local);
}

TEST(QuantNotation, what_is_wrong_is_named) {
  const ModelConfig c = tiny_dense();
  EXPECT_THAT(error("vllm:quant=fp7", c),
              AllOf(HasSubstr("vllm: quant=fp7 is unknown"), HasSubstr("mxfp8_swizzled")));
  EXPECT_EQ(error("fsdp:quant=mxfp8", c),
            "fsdp: quant is a key of hf, megatron, vllm, sglang and explicit");
  EXPECT_EQ(error("hf:quant_skip=a", c),
            "hf: quant_grid, quant_skip and quant_method need quant=FORMAT");
  EXPECT_EQ(error("hf:quant=fp8_block,quant_method=mxfp4", c),
            "hf: quant_method=mxfp4 does not support fp8_block");
  EXPECT_THAT(error("hf:quant=fp8_block,quant_method=awq", c),
              HasSubstr("known methods are fp8, mxfp4"));
  EXPECT_EQ(error("hf:quant=mxfp8,quant_grid=own", c),
            "hf: quant_grid=own must be local or tensor");
  EXPECT_THAT(error("hf:quant=mxfp8,quant_skip=a++b", c), HasSubstr("no part may be empty"));
  EXPECT_EQ(error("vllm:quant=mxfp8,quant_grid=local,quant_skip=lm_head+o_porj", c),
            "quant_skip=o_porj: no tensor of the model has this in its name (did you mean "
            "'o_proj'?)");
}

TEST(QuantNotation, linear_layers_and_experts_are_quantised) {
  const auto names = [](const ModelConfig& c, const char* family) {
    std::set<std::string> kinds;
    for (std::string name :
         default_quantised(*model_of(c), family, *quant_format_from_name("fp8_block"))) {
      name.resize(name.rfind('.'));
      kinds.insert(name.substr(name.rfind('.') + 1));
    }
    return kinds;
  };
  EXPECT_THAT(names(tiny_moe(), "vllm"), ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj",
                                                     "q_proj", "up_proj", "v_proj"));
  EXPECT_THAT(names(tiny_deepseek(), "vllm"),
              ElementsAre("down_proj", "gate_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
                          "q_a_proj", "q_b_proj", "up_proj"));
  EXPECT_FALSE(names(tiny_qwen3_next(), "vllm").contains("in_proj_ba"));
  EXPECT_TRUE(names(tiny_qwen3_next(), "megatron").contains("in_proj_ba"));
  EXPECT_FALSE(names(tiny_deepseek(), "hf").contains("eh_proj"));
  EXPECT_TRUE(names(tiny_deepseek(), "megatron").contains("eh_proj"));
  EXPECT_TRUE(names(tiny_qwen3_next(), "megatron").contains("fc"));
  EXPECT_FALSE(names(tiny_gpt_oss(), "vllm").contains("experts"));
}

TEST(QuantNotation, every_family_lays_out_every_model) {
  for (const ModelConfig& c : tiny_models())
    for (const char* family : {"hf", "megatron", "vllm", "sglang"})
      for (const char* format : {"mxfp8", "fp8_block", "fp8_tensor", "fp8_channel"}) {
        const auto q = make(std::string(family) + ":quant_grid=local,quant=" + format, c);
        ASSERT_TRUE(q.has_value()) << c.architecture << " " << family << " " << q.error().message;
        EXPECT_FALSE(q->pairs.empty());
        q->stored->ranks().for_each(
            [&](Rank r) { EXPECT_TRUE(check_shard_map(*q->stored, r).has_value()); });
      }
}

TEST(QuantNotation, names_are_those_of_vllms_modules) {
  const ModelConfig c = wide_moe();
  const auto q = make("vllm:tp=2,quant=nvfp4,quant_grid=local", c);
  ASSERT_TRUE(q.has_value()) << q.error().message;
  EXPECT_THAT(names_on(*q->stored, 1, "layers.1.mlp.experts"),
              ElementsAre("model.layers.1.mlp.experts.routed_experts.w13_weight",
                          "model.layers.1.mlp.experts.routed_experts.w13_weight_scale",
                          "model.layers.1.mlp.experts.routed_experts.w13_weight_scale_2",
                          "model.layers.1.mlp.experts.routed_experts.w2_weight",
                          "model.layers.1.mlp.experts.routed_experts.w2_weight_scale",
                          "model.layers.1.mlp.experts.routed_experts.w2_weight_scale_2"));
  EXPECT_EQ(shape_on(*q->stored, "model.layers.1.mlp.experts.routed_experts.w13_weight_scale_2", 1),
            "[10, 2]");
  EXPECT_EQ(shape_on(*q->stored, "model.layers.1.mlp.experts.routed_experts.w2_weight_scale_2", 1),
            "[10]");
  EXPECT_THAT(names_on(*q->stored, 1, "lm_head"), ElementsAre("lm_head.weight"));
}

/// "name DTYPE [shape]" of what a module of vLLM holds of a slot of `layer`'s on rank 1, as the
/// program's files and inspect have it.
std::string module_part(const std::string& text, QuantPart part, const std::string& slot) {
  ModelConfig c = wide_moe();
  c.hidden_size = c.intermediate_size = c.moe_intermediate_size = 256;
  c.head_dim = 64;
  LayoutSpec spec = *parse_layout(text);
  const auto notation = *take_quant(spec);
  const auto q = make(text, c);
  EXPECT_TRUE(q.has_value()) << q.error().message;
  for (const QuantisedLayout::Pair& pair : q->pairs) {
    if (q->values->slot(pair.values).name != slot) continue;
    const SlotId id = part == QuantPart::data     ? pair.data
                      : part == QuantPart::scales ? pair.scales
                                                  : pair.factor;
    const Slot& s = q->stored->slot(id);
    const FileTensor held = in_modules(notation->method, notation->format, part, s.name, s.dtype,
                                       q->stored->stored_shape(id, Rank(1)));
    return held.name.substr(held.name.rfind('.') + 1) + " " + std::string(name(held.dtype)) + " " +
           to_string(held.shape);
  }
  return "none";
}

// Recorded from vLLM 0.32's own modules; make vllm-test compares with them.
TEST(QuantNotation, modules_hold_what_their_quant_method_creates) {
  using enum QuantPart;
  const auto module = [](const std::string& quant, QuantPart part, bool experts) {
    return module_part("vllm:tp=2,quant=" + quant, part,
                       experts ? "model.layers.1.mlp.experts.routed_experts.w13_weight"
                               : "model.layers.0.mlp.gate_up_proj.weight");
  };
  EXPECT_EQ(module("fp8_block", scales, false), "weight_scale_inv F32 [2, 2]");
  EXPECT_EQ(module("fp8_block,quant_method=fp8", scales, true),
            "w13_weight_scale_inv F32 [10, 2, 2]");
  const std::string compressed = ",quant_method=compressed-tensors";
  EXPECT_EQ(module("fp8_block" + compressed, data, false), "weight F8_E4M3 [256, 256]");
  EXPECT_EQ(module("fp8_block" + compressed, scales, false), "weight_scale F32 [2, 2]");
  EXPECT_EQ(module("fp8_block" + compressed, scales, true), "w13_weight_scale F32 [10, 2, 2]");
  EXPECT_EQ(module("fp8_channel" + compressed, scales, false), "weight_scale F32 [256, 1]");
  EXPECT_EQ(module("mxfp4" + compressed, data, false), "weight_packed U8 [256, 128]");
  EXPECT_EQ(module("mxfp4" + compressed, scales, false), "weight_scale U8 [256, 8]");
  EXPECT_EQ(module("mxfp4" + compressed, data, true), "w13_weight_packed U8 [10, 256, 128]");
  EXPECT_EQ(module("nvfp4_divisor" + compressed, factor, true),
            "w13_weight_global_scale F32 [10, 2]");
  const std::string modelopt = ",quant_method=modelopt";
  EXPECT_EQ(module("fp8_tensor" + modelopt, scales, false), "weight_scale F32 [2]");
  EXPECT_EQ(module("fp8_tensor" + modelopt, scales, true), "w13_weight_scale F32 [10, 2]");
  EXPECT_EQ(module("fp8_channel" + modelopt, scales, false), "weight_scale F32 [256]");
  EXPECT_EQ(module("fp8_block" + modelopt, scales, false), "weight_scale F32 [2, 1, 2, 1]");
  EXPECT_EQ(module("mxfp8" + modelopt, scales, false), "weight_scale U8 [256, 8]");
  EXPECT_EQ(module("nvfp4" + modelopt, factor, true), "w13_weight_scale_2 F32 [10, 2]");
  EXPECT_THAT(error("megatron:quant=fp8_block,quant_method=modelopt", wide_moe()),
              HasSubstr("quant_method is a key of hf"));
  EXPECT_THAT(error("vllm:quant=fp8_group,quant_method=modelopt", wide_moe()),
              HasSubstr("quant_method=modelopt does not support fp8_group"));
}

// 768 rows over 32 ranks are 24, which no block of 32 divides; over 2 they are 3 blocks. DeepSeek's
// 576 rows of kv_a are the last of a fused layer that is not cut.
TEST(QuantNotation, engines_refuse_shards_that_cut_blocks) {
  const ModelConfig c = qwen3_30b();
  EXPECT_THAT(
      error("vllm:tp=32,quant=fp8_block", c),
      HasSubstr("a rank's 24 rows of 'model.layers.0.mlp.experts.routed_experts.w13_weight' "
                "are not divisible by the quantisation block of 128"));
  EXPECT_THAT(error("sglang:tp=8,quant=fp8_block", c), HasSubstr("a rank's 96 rows of"));
  EXPECT_THAT(error("vllm:tp=8,quant=fp8_block,quant_method=compressed-tensors", c),
              HasSubstr("a rank's 96 rows of"));
  EXPECT_EQ(error("vllm:tp=2,quant=fp8_block", c), "none");
  ModelConfig narrow = qwen3_30b();
  narrow.moe_intermediate_size = 192;
  for (const char* engine : {"sglang", "vllm"})
    EXPECT_THAT(error(std::string(engine) + ":quant=fp8_block", narrow),
                HasSubstr("a rank's 192 rows of"));
  ModelConfig mla = tiny_deepseek();
  mla.mla.q_rank = 256;
  mla.moe_intermediate_size = mla.shared_expert_size = mla.intermediate_size = 128;
  EXPECT_EQ(error("vllm:quant=fp8_block", mla), "none");
  EXPECT_EQ(error("sglang:tp=8,ep=8,quant=fp8_block", c), "none");
  EXPECT_EQ(error("vllm:tp=8,quant=fp8_block,quant_grid=local", c), "none");
  EXPECT_EQ(error("vllm:tp=8,quant=fp8_block,quant_grid=tensor", c), "none");
  EXPECT_EQ(error("vllm:tp=8,quant=mxfp8", c), "none");
  EXPECT_EQ(error("megatron:tp=8,etp=8,quant=fp8_block", c), "none");
}

ModelConfig one_layer_of(ModelConfig c) {
  c.num_hidden_layers = 1;
  c.layers.resize(1);
  return c;
}

// Kernels, Transformer Engine and the writers of checkpoints take whole blocks of 32 or 16 only.
TEST(QuantNotation, blocks_with_a_byte_of_scale_must_be_whole_cut_or_not) {
  ModelConfig odd = one_layer_of(qwen3_30b());
  odd.hidden_size = 2056;  // 64 blocks of 32 and a quarter, 128 of 16 and a half
  for (const char* format : {"mxfp8", "mxfp4", "nvfp4", "nvfp4_divisor"})
    for (const char* layout : {"hf:", "vllm:", "vllm:tp=2,", "sglang:tp=2,", "megatron:tp=2,"})
      EXPECT_THAT(
          error(std::string(layout) + "quant=" + format, odd),
          AllOf(HasSubstr("a rank's 2056 columns of "), HasSubstr("exclude it with quant_skip")));
  EXPECT_THAT(error("vllm:quant=mxfp8_swizzled", odd), HasSubstr("a rank's 2056 columns of "));
  EXPECT_EQ(error("vllm:quant=mxfp8,quant_grid=local", odd), "none");
  EXPECT_EQ(error("vllm:quant=fp8_channel", odd), "none");
  ModelConfig narrow = one_layer_of(qwen3_30b());
  narrow.moe_intermediate_size = 96;
  EXPECT_EQ(error("vllm:quant=mxfp8", narrow), "none");
  EXPECT_THAT(
      error("vllm:tp=2,quant=mxfp8", narrow),
      AllOf(
          HasSubstr("a rank's 48 columns of 'model.layers.0.mlp.experts.routed_experts.w2_weight'"),
          HasSubstr("block of 32, which the engine rejects; cut into fewer parts")));
  EXPECT_EQ(error("vllm:tp=2,quant=nvfp4", narrow), "none");
}

// It keeps every weight twice, quantised along its rows and along its columns.
TEST(QuantNotation, transformer_engine_takes_whole_blocks_of_rows_too) {
  ModelConfig c = one_layer_of(qwen3_30b());
  c.head_dim = 17;  // 544 columns of o_proj, 680 rows of q, k and v
  EXPECT_THAT(error("megatron:quant=mxfp8", c),
              HasSubstr("a rank's 680 rows of 'decoder.layers.0.self_attention.linear_qkv.weight' "
                        "are not divisible by the quantisation block of 32, which Transformer "
                        "Engine rejects"));
  EXPECT_EQ(error("vllm:quant=mxfp8", c), "none");
  EXPECT_EQ(error("megatron:tp=2,ep=8,etp=1,quant=mxfp8", one_layer_of(qwen3_30b())), "none");
}

}  // namespace
}  // namespace reshard
