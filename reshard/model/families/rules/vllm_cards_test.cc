// SPDX-License-Identifier: Apache-2.0
// Protects: the layout of vLLM 0.33.0 outside the experts, by hand-worked numbers from its modules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/held_testutil.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const ModelLayout> vllm(const std::string& keys, const ModelConfig& c) {
  return layout_of("vllm:" + keys, model_of(c), c);
}

const Slot& slot(const ModelLayout& l, const std::string& name, int rank = 0) {
  return l.slot(*slot_named(l, name, rank));
}

TEST(VllmStages, the_rest_goes_to_the_stages_before_the_last) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 6;
  c.layers.assign(6, {Mixer::attention, Ffn::dense});
  const auto l = vllm("tp=2,pp=4", c);  // 6 over 4: 1, 2, 2, 1; tp fastest, then pp.
  const auto first = [&](int rank) { return names_on(*l, rank, "down_proj.weight").front(); };
  EXPECT_EQ(first(0), "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(first(1), "model.layers.0.mlp.down_proj.weight");
  EXPECT_THAT(
      names_on(*l, 2, "down_proj.weight"),
      ElementsAre("model.layers.1.mlp.down_proj.weight", "model.layers.2.mlp.down_proj.weight"));
  EXPECT_THAT(
      names_on(*l, 5, "down_proj.weight"),
      ElementsAre("model.layers.3.mlp.down_proj.weight", "model.layers.4.mlp.down_proj.weight"));
  EXPECT_THAT(names_on(*l, 7, "down_proj.weight"),
              ElementsAre("model.layers.5.mlp.down_proj.weight"));
}

TEST(VllmStages, dp_is_slower_than_pp) {
  const auto l = vllm("pp=2,dp=2", tiny_moe());
  EXPECT_THAT(names_on(*l, 2, "layers.0.mlp.down"),
              ElementsAre("model.layers.0.mlp.down_proj.weight"));
  EXPECT_THAT(names_on(*l, 1, "layers.0."), ElementsAre());
}

TEST(VllmEnds, models_differ_in_what_every_stage_builds) {
  const auto ends = [](const ModelConfig& c, int rank) {
    const auto l = vllm("pp=3", c);
    return std::string(slot_named(*l, "model.embed_tokens.weight", rank) ? "e" : "-") +
           (slot_named(*l, "model.norm.weight", rank) ? "n" : "-") +
           (slot_named(*l, "lm_head.weight", rank) ? "h" : "-");
  };
  const auto all = [&](const ModelConfig& c) {
    return ends(c, 0) + " " + ends(c, 1) + " " + ends(c, 2);
  };
  EXPECT_EQ(all(tiny_dense()), "e-- --- -nh");
  EXPECT_EQ(all(tiny_deepseek()), "e-- --- -nh");
  EXPECT_EQ(all(tiny_moe()), "enh enh enh");
  EXPECT_EQ(all(tiny_qwen3_next()), "e-h e-h enh");
  EXPECT_EQ(all(tiny_gemma3()), "en- en- en-");
  ModelConfig tied = tiny_dense();
  tied.tie_word_embeddings = true;
  EXPECT_EQ(all(tied), "e-- --- en-");
}

TEST(VllmNames, gpt_oss_and_nemotron_have_their_own) {
  const auto oss = vllm("tp=1", tiny_gpt_oss());
  EXPECT_TRUE(slot_named(*oss, "model.embedding.weight", 0));
  EXPECT_TRUE(slot_named(*oss, "model.layers.1.attn.qkv_proj.bias", 0));
  EXPECT_TRUE(slot_named(*oss, "model.layers.1.mlp.router.bias", 0));
  const auto hybrid = vllm("tp=1", tiny_nemotron());
  EXPECT_TRUE(slot_named(*hybrid, "model.embed_tokens.weight", 0));
  EXPECT_TRUE(slot_named(*hybrid, "model.norm_f.weight", 0));
  EXPECT_TRUE(slot_named(*hybrid, "model.layers.2.mixer.qkv_proj.weight", 0));
  EXPECT_TRUE(slot_named(*hybrid, "model.layers.3.mixer.up_proj.weight", 0));
  EXPECT_TRUE(slot_named(*hybrid, "model.layers.1.mixer.fc1_latent_proj.weight", 0));
  EXPECT_TRUE(slot_named(*hybrid, "model.layers.1.norm.weight", 0));
}

TEST(VllmNames, language_model_is_in_front_of_all) {
  const auto l = vllm("prefix=language_model", tiny_dense());
  EXPECT_TRUE(slot_named(*l, "language_model.lm_head.weight", 0));
  EXPECT_TRUE(slot_named(*l, "language_model.model.layers.0.mlp.gate_up_proj.weight", 0));
  EXPECT_EQ(names_on(*l, 0, "language_model.").size(), static_cast<std::size_t>(l->num_slots()));
}

TEST(VllmNames, gemma_has_four_norms) {
  EXPECT_THAT(names_on(*vllm("tp=2", tiny_gemma3()), 1, "model.layers.0.p"),
              ElementsAre("model.layers.0.post_attention_layernorm.weight",
                          "model.layers.0.post_feedforward_layernorm.weight",
                          "model.layers.0.pre_feedforward_layernorm.weight"));
}

TEST(VllmEnds, vocabulary_is_padded_to_64_or_what_is_asked_for) {
  ModelConfig c = tiny_dense();
  c.vocab_size = 70;  // 128 rows, or 96
  EXPECT_EQ(rows_on(*vllm("tp=2", c), "lm_head.weight", 1), "lm_head[64,70)+0 of 64");
  EXPECT_EQ(rows_on(*vllm("tp=2,vocab_multiple=32", c), "lm_head.weight", 1),
            "lm_head[48,70)+0 of 48");
}

TEST(VllmMlp, gate_is_before_up_and_down_is_cut_on_columns) {
  const auto l = vllm("tp=4", tiny_dense());  // 24 wide
  EXPECT_EQ(rows_on(*l, "model.layers.0.mlp.gate_up_proj.weight", 2),
            "gate_proj[12,18)+0 up_proj[12,18)+6 of 12");
  EXPECT_EQ(boxes_on(*l, "model.layers.0.mlp.down_proj.weight", 2),
            "down_proj[0,16)x[12,18)@0:6,1");
}

TEST(VllmAttention, gated_queries_come_with_their_heads) {
  // q_proj has 8 heads of query 4 and gate 4: 64 rows; KV 4 heads of 4.
  const auto l = vllm("tp=2", tiny_qwen3_next());
  EXPECT_EQ(rows_on(*l, "model.layers.3.self_attn.qkv_proj.weight", 1),
            "q_proj[32,64)+0 k_proj[8,16)+32 v_proj[8,16)+40 of 48");
}

TEST(VllmAttention, sinks_and_biases_follow_the_heads) {
  const auto l = vllm("tp=4", tiny_gpt_oss());
  EXPECT_EQ(rows_on(*l, "model.layers.0.attn.sinks", 3), "sinks[6,8)+0 of 2");
  EXPECT_EQ(rows_on(*l, "model.layers.0.attn.qkv_proj.bias", 3),
            "q_proj[24,32)+0 k_proj[12,16)+8 v_proj[12,16)+12 of 16");
  EXPECT_EQ(rows_on(*l, "model.layers.0.attn.o_proj.bias", 3), "o_proj[0,16)+0 of 16");
}

TEST(VllmMla, first_projections_are_one_and_whole) {
  // q_a has 16 rows, kv_a 8 + 4; q_b 8 heads of 12, kv_b 8 heads of 14, o_proj 8 * 6 columns.
  const auto l = vllm("tp=4", tiny_deepseek());
  const std::string at = "model.layers.1.self_attn.";
  for (int rank : {0, 3})
    EXPECT_EQ(rows_on(*l, at + "fused_qkv_a_proj.weight", rank),
              "q_a_proj[0,16)+0 kv_a_proj_with_mqa[0,12)+16 of 28");
  EXPECT_EQ(rows_on(*l, at + "q_b_proj.weight", 1), "q_b_proj[24,48)+0 of 24");
  EXPECT_EQ(rows_on(*l, at + "kv_b_proj.weight", 1), "kv_b_proj[28,56)+0 of 28");
  EXPECT_EQ(boxes_on(*l, at + "o_proj.weight", 1), "o_proj[0,16)x[12,24)@0:12,1");
  EXPECT_EQ(rows_on(*l, at + "kv_a_layernorm.weight", 3), "kv_a_layernorm[0,8)+0 of 8");
}

/// The names ending in `end` of tensors that the layout leaves out on purpose.
std::vector<std::string> left_out(const ModelLayout& l, const std::string& end) {
  std::vector<std::string> names;
  for (Index t = 0; t < l.model().size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    const std::string& name = l.model()[id].name;
    if (l.omits(id) && name.ends_with(end)) names.push_back(name);
  }
  return names;
}

TEST(VllmMla, without_q_rank_there_is_nothing_to_fuse) {
  ModelConfig c = tiny_deepseek();
  c.mla.q_rank = 0;
  const auto l = vllm("tp=2", c);
  const std::string at = "model.layers.0.self_attn.";
  EXPECT_EQ(rows_on(*l, at + "q_proj.weight", 1), "q_proj[48,96)+0 of 48");
  EXPECT_EQ(rows_on(*l, at + "kv_a_proj_with_mqa.weight", 1), "kv_a_proj_with_mqa[0,12)+0 of 12");
  EXPECT_FALSE(slot_named(*l, at + "fused_qkv_a_proj.weight", 0));
}

TEST(VllmMla, its_modules_have_no_biases_and_leave_a_checkpoints_out) {
  ModelConfig c = tiny_deepseek();
  c.num_hidden_layers = 1;
  c.layers.resize(1);
  c.num_mtp = 0;
  c.mla.bias = true;
  const auto l = vllm("tp=2", c);
  EXPECT_THAT(names_on(*l, 0, "bias"), ElementsAre());
  EXPECT_THAT(left_out(*l, ".bias"), ElementsAre("model.layers.0.self_attn.q_a_proj.bias",
                                                 "model.layers.0.self_attn.kv_a_proj_with_mqa.bias",
                                                 "model.layers.0.self_attn.o_proj.bias"));
}

TEST(VllmAttention, a_class_without_an_output_bias_leaves_the_checkpoints_out) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 1;
  c.layers.resize(1);
  c.attention_bias = c.attention_output_bias = true;
  EXPECT_TRUE(slot_named(*vllm("tp=2", c), "model.layers.0.self_attn.o_proj.bias", 1));
  for (const char* type : {"qwen3", "qwen3_moe"}) {
    c.model_type = type;
    const auto l = vllm("tp=2", c);
    EXPECT_TRUE(slot_named(*l, "model.layers.0.self_attn.qkv_proj.bias", 1));
    EXPECT_FALSE(slot_named(*l, "model.layers.0.self_attn.o_proj.bias", 1));
    EXPECT_THAT(left_out(*l, ".bias"), ElementsAre("model.layers.0.self_attn.o_proj.bias"));
  }
  c.model_type = "qwen3_next";
  EXPECT_THAT(
      left_out(*vllm("tp=2", c), ".bias"),
      ElementsAre("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.k_proj.bias",
                  "model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.o_proj.bias"));
}

TEST(VllmMamba, packed_parts_are_cut_one_by_one) {
  // 8 heads of 4 = 32, 4 groups of 6 = 24: z[0,32) x[32,64) B[64,88) C[88,112) dt[112,120).
  const auto l = vllm("tp=2", tiny_nemotron());
  const std::string at = "model.layers.0.mixer.";
  EXPECT_EQ(rows_on(*l, at + "in_proj.weight", 1),
            "in_proj[16,32)+0 in_proj[48,64)+16 in_proj[76,88)+32 in_proj[100,112)+44 "
            "in_proj[116,120)+56 of 60");
  EXPECT_EQ(rows_on(*l, at + "conv1d.weight", 1),
            "conv1d[16,32)+0 conv1d[44,56)+16 conv1d[68,80)+28 of 40");
  EXPECT_EQ(rows_on(*l, at + "conv1d.bias", 0),
            "conv1d[0,16)+0 conv1d[32,44)+16 conv1d[56,68)+28 of 40");
  EXPECT_EQ(shape_on(*l, at + "conv1d.weight", 1), "[40, 1, 4]");
  EXPECT_EQ(rows_on(*l, at + "norm.weight", 1), "norm[16,32)+0 of 16");
  EXPECT_EQ(rows_on(*l, at + "dt_bias", 1), "dt_bias[4,8)+0 of 4");
  EXPECT_EQ(boxes_on(*l, at + "out_proj.weight", 1), "out_proj[0,16)x[16,32)@0:16,1");
}

TEST(VllmMamba, a_single_group_is_on_every_rank) {
  ModelConfig c = tiny_nemotron();
  c.mamba2.groups = 1;  // B[64,70) C[70,76) dt[76,84)
  const auto l = vllm("tp=4", c);
  EXPECT_EQ(
      rows_on(*l, "model.layers.0.mixer.in_proj.weight", 3),
      "in_proj[24,32)+0 in_proj[56,64)+8 in_proj[64,70)+16 in_proj[70,76)+22 in_proj[82,84)+28 "
      "of 30");
  EXPECT_EQ(rows_on(*l, "model.layers.0.mixer.conv1d.weight", 3),
            "conv1d[24,32)+0 conv1d[32,38)+8 conv1d[38,44)+14 of 20");
}

TEST(VllmMamba, a_is_kept_as_the_kernel_wants_it) {
  const auto l = vllm("tp=2", tiny_nemotron());
  const Slot& a = slot(*l, "model.layers.0.mixer.A");
  EXPECT_EQ(a.map, ValueMap::negated_exp);
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(rows_on(*l, "model.layers.0.mixer.A", 1), "A_log[4,8)+0 of 4");
  EXPECT_EQ(slot(*l, "model.layers.0.mixer.D").dtype, DType::bf16);
  EXPECT_EQ(slot(*l, "model.layers.0.mixer.D").map, ValueMap::identity);
}

TEST(VllmGatedDelta, checkpoints_are_interleaved_by_key_head) {
  // 4 key heads of 4 (16 rows), 8 value heads of 6 (48): qkvz 128 rows, ba 16; conv q, k, v.
  const auto l = vllm("tp=2", tiny_qwen3_next());
  const std::string at = "model.layers.0.linear_attn.";
  EXPECT_EQ(rows_on(*l, at + "in_proj_qkvz.weight", 1), "in_proj_qkvz[64,128)+0 of 64");
  EXPECT_EQ(rows_on(*l, at + "in_proj_ba.weight", 1), "in_proj_ba[8,16)+0 of 8");
  EXPECT_EQ(rows_on(*l, at + "conv1d.weight", 1),
            "conv1d[8,16)+0 conv1d[24,32)+8 conv1d[56,80)+16 of 40");
  EXPECT_EQ(slot(*l, at + "A_log").dtype, DType::f32);
  EXPECT_EQ(slot(*l, at + "A_log").map, ValueMap::identity);
  EXPECT_EQ(slot(*l, at + "dt_bias").dtype, DType::bf16);
  EXPECT_EQ(rows_on(*l, at + "norm.weight", 1), "norm[0,6)+0 of 6");
  EXPECT_EQ(boxes_on(*l, at + "out_proj.weight", 1), "out_proj[0,16)x[24,48)@0:24,1");
}

TEST(VllmMtp, trailing_modules_wrap_a_layer) {
  const auto l = vllm("tp=2,pp=2,mtp=1", tiny_deepseek());
  EXPECT_EQ(rows_on(*l, "model.layers.4.eh_proj.weight", 3), "eh_proj[0,16)+0 of 16");
  EXPECT_EQ(rows_on(*l, "model.layers.4.shared_head.head.weight", 3), "lm_head[64,100)+0 of 64");
  EXPECT_EQ(rows_on(*l, "model.layers.4.mtp_block.self_attn.q_b_proj.weight", 3),
            "q_b_proj[48,96)+0 of 48");
  // 5 of the module, 6 of MLA, 2 norms, 6 of the experts.
  EXPECT_EQ(names_on(*l, 2, "model.layers.4.").size(), 19u);
  EXPECT_TRUE(slot_named(*l, "model.layers.4.shared_head.norm.weight", 2));
  EXPECT_TRUE(slot_named(*l, "model.embed_tokens.weight", 2));
  EXPECT_THAT(names_on(*l, 1, "model.layers.4."), ElementsAre());
}

TEST(VllmMtp, qwen_and_nemotron_cut_the_projection) {
  const auto qwen = vllm("tp=2,mtp=1", tiny_qwen3_next());
  EXPECT_EQ(rows_on(*qwen, "mtp.fc.weight", 1), "fc[8,16)+0 of 8");
  EXPECT_TRUE(slot_named(*qwen, "mtp.pre_fc_norm_hidden.weight", 1));
  EXPECT_TRUE(slot_named(*qwen, "mtp.layers.0.self_attn.qkv_proj.weight", 1));
  const auto hybrid = vllm("tp=2,mtp=1", tiny_nemotron());
  EXPECT_EQ(rows_on(*hybrid, "mtp.layers.0.eh_proj.weight", 1), "eh_proj[8,16)+0 of 8");
  EXPECT_TRUE(slot_named(*hybrid, "mtp.layers.0.hnorm.weight", 1));
  EXPECT_TRUE(slot_named(*hybrid, "mtp.layers.1.final_layernorm.weight", 1));
  EXPECT_TRUE(slot_named(*hybrid, "mtp.layers.1.mixer.experts.routed_experts.w13_weight", 1));
}

TEST(VllmMtp, is_left_out_unless_asked_for) {
  for (const ModelConfig& c : {tiny_deepseek(), tiny_qwen3_next(), tiny_nemotron()}) {
    const auto l = vllm("tp=1", c);
    EXPECT_TRUE(
        l->omits(*l->model().find(c.mtp_names == MtpNames::trailing ? "model.layers.4.enorm.weight"
                                  : c.mtp_names == MtpNames::qwen   ? "mtp.fc.weight"
                                                                  : "mtp.layers.0.enorm.weight")));
    EXPECT_FALSE(l->omits(*l->model().find("lm_head.weight")));
    EXPECT_THAT(names_on(*l, 0, "mtp"), ElementsAre());
  }
}

TEST(VllmDtype, leaves_what_the_engine_creates_in_float32) {
  const auto l = vllm("dtype=float16", tiny_nemotron());
  EXPECT_EQ(slot(*l, "model.layers.0.mixer.A").dtype, DType::f32);
  EXPECT_EQ(slot(*l, "model.layers.0.mixer.D").dtype, DType::f16);
  EXPECT_EQ(slot(*l, "model.layers.1.mixer.gate.e_score_correction_bias").dtype, DType::f32);
  EXPECT_EQ(slot(*l, "model.norm_f.weight").dtype, DType::f16);
  ModelConfig c = tiny_nemotron();
  c.has_dtype = true;
  for (const char* engine : {"vllm:dtype=float16,mtp=1", "sglang:dtype=float16,mtp=1"}) {
    const auto draft = layout_of(engine, model_of(c), c);
    EXPECT_EQ(slot(*draft, "mtp.layers.0.eh_proj.weight").dtype, DType::bf16) << engine;
    EXPECT_EQ(slot(*draft, "mtp.layers.0.hnorm.weight").dtype, DType::f16) << engine;
  }
}

TEST(VllmDtype, is_the_models_whatever_the_checkpoint_stores_a_parameter_in) {
  const ModelConfig c = tiny_nemotron();
  const auto model =
      model_of(c, {"mixer.D", "dt_bias", "A_log", "mixer.gate.weight", "norm.weight"}, DType::f32);
  const auto at = [&](const char* layout, const std::string& name) {
    return slot(*layout_of(layout, model, c), "model.layers." + name).dtype;
  };
  for (const char* layout : {"vllm", "sglang"}) {
    EXPECT_EQ(at(layout, "0.mixer.A"), DType::f32) << layout;
    for (const char* name : {"0.mixer.D", "0.mixer.dt_bias", "0.mixer.norm.weight", "0.norm.weight",
                             "1.mixer.gate.weight", "0.mixer.in_proj.weight"})
      EXPECT_EQ(at(layout, name), DType::bf16) << layout << " " << name;
  }
  EXPECT_EQ(at("vllm:dtype=float32", "0.mixer.D"), DType::f32);
  EXPECT_EQ(at("vllm:router=float32", "1.mixer.gate.weight"), DType::f32);
}

TEST(VllmDtype, is_what_the_config_says_and_otherwise_that_of_the_embedding) {
  ModelConfig c = tiny_dense();
  const auto wide = model_of(c, {"weight"}, DType::f32);
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  EXPECT_EQ(slot(*layout_of("vllm", wide, c), name).dtype, DType::f32);
  c.has_dtype = true;
  EXPECT_EQ(slot(*layout_of("vllm", wide, c), name).dtype, DType::bf16);
  c.dtype = DType::f8_e4m3;
  EXPECT_EQ(slot(*layout_of("vllm", wide, c), name).dtype, DType::f32);
}

TEST(VllmErrors, say_what_does_not_divide) {
  const auto message = [](const std::string& keys, const ModelConfig& c) {
    const auto l = try_layout("vllm:" + keys, model_of(c), c);
    return l ? std::string("accepted") : l.error().message;
  };
  ModelConfig three = tiny_nemotron();
  three.mamba2.groups = 2;
  EXPECT_THAT(message("tp=4", three), HasSubstr("tp=4 does not divide n_groups=2; only a single"));
  EXPECT_THAT(message("tp=8", tiny_qwen3_next()),
              HasSubstr("tp=8 does not divide linear_num_key_heads=4"));
  EXPECT_THAT(message("mtp=1", tiny_dense()), HasSubstr("LlamaForCausalLM has none"));
  EXPECT_THAT(message("pp=5", tiny_dense()), HasSubstr("pp=5 exceeds num_hidden_layers=4"));
  EXPECT_THAT(message("prefix=x", tiny_dense()), HasSubstr("one of model, language_model"));
  EXPECT_THAT(message("router=float32", tiny_moe()),
              HasSubstr("router=float32 is only for Nemotron-H"));
}

}  // namespace
}  // namespace reshard
