// SPDX-License-Identifier: Apache-2.0
// Protects: where SGLang 0.5.23 differs from vLLM, by numbers worked out by hand from its modules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/held_testutil.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::shared_ptr<const ModelLayout> sglang(const std::string& keys, const ModelConfig& c) {
  return layout_of("sglang:" + keys, model_of(c), c);
}

/// The experts of a rank's w2_weight by their number; "s0" for rows or columns of a shared one.
std::vector<std::string> experts_of(const ModelLayout& l, int rank) {
  const auto id = slot_named(l, "model.layers.1.mlp.experts.w2_weight", rank);
  std::vector<std::string> experts;
  for (const Fragment& f : l.local(*id, Rank(rank)).fragments) {
    const std::string& name = l.model()[f.tensor].name;
    const auto at = name.find("mlp.experts.");
    experts.push_back(at == std::string::npos ? "s" + std::to_string(f.box[1].begin())
                                              : std::to_string(std::stoi(name.substr(at + 12))));
  }
  return experts;
}

TEST(SglangAttention, dp_is_part_of_tp) {
  // tp=4, dp=2: heads are cut by 2; rank = 2 * dp + attention rank. 8 heads, 4 KV heads of 4.
  const auto l = sglang("tp=4,dp=2", tiny_moe());
  ASSERT_EQ(l->ranks().size(), 4);
  const std::string qkv = "model.layers.0.self_attn.qkv_proj.weight";
  for (int rank : {1, 3})
    EXPECT_EQ(rows_on(*l, qkv, rank), "q_proj[16,32)+0 k_proj[8,16)+16 v_proj[8,16)+24 of 32");
  // The dense MLP is cut by all four: 24 / 4.
  EXPECT_EQ(rows_on(*l, "model.layers.0.mlp.gate_up_proj.weight", 2),
            "gate_proj[12,18)+0 up_proj[12,18)+6 of 12");
  EXPECT_EQ(shape_on(*sglang("tp=4,dp=2,dense=whole", tiny_moe()),
                     "model.layers.0.mlp.gate_up_proj.weight", 3),
            "[48, 16]");
}

TEST(SglangAttention, columns_are_cut_over_the_ranks_of_heads_and_those_of_mlps_over_all) {
  // o_proj has 8 heads of 4 columns over 2 attention ranks, down_proj 24 columns over 4.
  const auto l = sglang("tp=4,dp=2", tiny_moe());
  const std::string at = "model.layers.0.";
  for (int rank : {1, 3})
    EXPECT_EQ(boxes_on(*l, at + "self_attn.o_proj.weight", rank), "o_proj[0,16)x[16,32)@0:16,1");
  EXPECT_EQ(boxes_on(*l, at + "mlp.down_proj.weight", 1), "down_proj[0,16)x[6,12)@0:6,1");
  EXPECT_EQ(boxes_on(*l, at + "mlp.down_proj.weight", 2), "down_proj[0,16)x[12,18)@0:6,1");
}

TEST(SglangAttention, kv_heads_repeat_over_the_attention_ranks) {
  const auto l = sglang("tp=8,replicas=2", tiny_dense());
  EXPECT_EQ(rows_on(*l, "model.layers.0.self_attn.qkv_proj.weight", 13),
            "q_proj[20,24)+0 k_proj[8,12)+4 v_proj[8,12)+8 of 12");
}

TEST(SglangVocabulary, embedding_follows_attention_and_the_head_all_ranks) {
  // 100 rows are padded to 128: 64 each over 2 attention ranks, 32 each over 4.
  const auto l = sglang("tp=4,dp=2", tiny_moe());
  EXPECT_EQ(rows_on(*l, "model.embed_tokens.weight", 3), "embed_tokens[64,100)+0 of 64");
  EXPECT_EQ(rows_on(*l, "model.embed_tokens.weight", 2), "embed_tokens[0,64)+0 of 64");
  EXPECT_EQ(rows_on(*l, "lm_head.weight", 1), "lm_head[32,64)+0 of 32");
  const auto dp = sglang("tp=4,dp=2,dp_lm_head=1", tiny_moe());
  EXPECT_EQ(rows_on(*dp, "lm_head.weight", 2), "lm_head[0,64)+0 of 64");
}

TEST(SglangVocabulary, what_does_not_divide_is_padded_to_more) {
  ModelConfig c = tiny_dense();
  c.num_attention_heads = c.num_key_value_heads = 6;
  // 128 does not divide by 3: 64 * 3 = 192, 64 each.
  EXPECT_EQ(rows_on(*sglang("tp=3", c), "lm_head.weight", 1), "lm_head[64,100)+0 of 64");
  c.model_type = "qwen2";  // whose head is on the last stage only
  EXPECT_EQ(rows_on(*sglang("tp=3", c), "lm_head.weight", 1), "lm_head[64,100)+0 of 64");
  // Gemma-3 has a plain embedding.
  EXPECT_EQ(rows_on(*sglang("tp=2", tiny_gemma3()), "model.embed_tokens.weight", 1),
            "embed_tokens[0,100)+0 of 100");
}

TEST(SglangStages, the_last_ones_have_more) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 6;
  c.layers.assign(6, {Mixer::attention, Ffn::dense});
  const auto l = sglang("pp=4", c);  // 1, 1, 2, 2
  const auto layers = [&](int rank) { return names_on(*l, rank, "down_proj.weight").size(); };
  EXPECT_THAT((std::vector<std::size_t>{layers(0), layers(1), layers(2), layers(3)}),
              ElementsAre(1, 1, 2, 2));
}

TEST(SglangStages, ends_of_the_pipeline) {
  const auto ends = [](const ModelConfig& c, int rank) {
    const auto l = sglang("pp=2", c);
    return std::string(slot_named(*l, "model.embed_tokens.weight", rank) ? "e" : "-") +
           (slot_named(*l, "model.norm.weight", rank) ? "n" : "-") +
           (slot_named(*l, "lm_head.weight", rank) ? "h" : "-");
  };
  EXPECT_EQ(ends(tiny_deepseek(), 0) + " " + ends(tiny_deepseek(), 1), "e-- -nh");
  EXPECT_EQ(ends(tiny_glm(), 0) + " " + ends(tiny_glm(), 1), "e-h -nh");
  ModelConfig tied = tiny_dense();
  tied.tie_word_embeddings = true;
  EXPECT_EQ(ends(tied, 0) + " " + ends(tied, 1), "e-- -nh");
  EXPECT_FALSE(slot_named(*sglang("tp=2", tied), "lm_head.weight", 0));
}

TEST(SglangNames, of_mla_and_gpt_oss) {
  const auto mla = sglang("tp=4", tiny_deepseek());
  EXPECT_EQ(rows_on(*mla, "model.layers.1.self_attn.fused_qkv_a_proj_with_mqa.weight", 3),
            "q_a_proj[0,16)+0 kv_a_proj_with_mqa[0,12)+16 of 28");
  const auto oss = sglang("tp=2", tiny_gpt_oss());
  EXPECT_EQ(rows_on(*oss, "model.layers.0.self_attn.sinks", 1), "sinks[4,8)+0 of 4");
  EXPECT_TRUE(slot_named(*oss, "model.embed_tokens.weight", 0));
  const std::string at = "model.layers.1.mlp.experts.";
  EXPECT_EQ(boxes_on(*oss, at + "w13_weight", 1),
            "gate_up_proj[0,4)x[0,16)x[4,8)x[0,2)@0:128,1,32,16");
  EXPECT_EQ(oss->slot(*slot_named(*oss, at + "w13_weight_bias", 1)).dtype, DType::f32);
  EXPECT_EQ(boxes_on(*oss, at + "w2_weight_bias", 0), "down_proj_bias[0,4)x[0,16)@0:16,1");
  EXPECT_EQ(boxes_on(*oss, at + "w2_weight_bias", 1), "");
}

TEST(SglangDtype, sinks_are_bfloat16_or_what_the_attention_backend_wants) {
  const ModelConfig c = tiny_gpt_oss();
  const auto sinks = [&](const char* layout) {
    const auto l = layout_of(layout, model_of(c, {"sinks"}, DType::f32), c);
    return l->slot(*slot_named(*l, "model.layers.0.self_attn.sinks", 0)).dtype;
  };
  EXPECT_EQ(sinks("sglang"), DType::bf16);
  EXPECT_EQ(sinks("sglang:dtype=float16"), DType::bf16);
  EXPECT_EQ(sinks("sglang:sinks=float32"), DType::f32);
}

// models/qwen3_next.py: load_weights() takes ".self_attn" out of names.
TEST(Sglang, layers_of_qwen3_next_have_the_parameters_of_attention) {
  const auto l = sglang("tp=2", tiny_qwen3_next());
  EXPECT_THAT(names_on(*l, 1, "self_attn"), ElementsAre());
  EXPECT_TRUE(slot_named(*l, "model.layers.3.qkv_proj.weight", 1));
  EXPECT_TRUE(slot_named(*l, "model.layers.3.o_proj.weight", 1));
  EXPECT_TRUE(slot_named(*l, "model.layers.3.q_norm.weight", 1));
  EXPECT_TRUE(slot_named(*l, "model.layers.0.linear_attn.norm.weight", 1));
}

TEST(SglangDtype, a_delta_nets_norm_is_in_the_configs) {
  ModelConfig c = tiny_qwen3_next();
  c.has_dtype = true;
  const auto l = layout_of("sglang:dtype=float16", model_of(c), c);
  const auto dtype = [&](const char* name) { return l->slot(*slot_named(*l, name, 0)).dtype; };
  EXPECT_EQ(dtype("model.layers.0.linear_attn.norm.weight"), DType::bf16);
  EXPECT_EQ(dtype("model.layers.0.linear_attn.dt_bias"), DType::f16);
  EXPECT_EQ(dtype("model.layers.0.linear_attn.A_log"), DType::f32);
}

TEST(SglangExperts, ep_is_the_slower_part_of_tp) {
  // tp=4, ep=2: rank = 2 * ep + expert rank; 8 experts of 8, 4 whole ones of which 4 columns.
  const auto l = sglang("tp=4,ep=2", tiny_glm());
  EXPECT_THAT(experts_of(*l, 1), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(experts_of(*l, 2), ElementsAre("4", "5", "6", "7"));
  EXPECT_THAT(boxes_on(*l, "model.layers.1.mlp.experts.w2_weight", 1),
              StartsWith("down_proj[0,16)x[4,8)@0:4,1"));
  EXPECT_THAT(boxes_on(*l, "model.layers.1.mlp.experts.w2_weight", 2),
              StartsWith("down_proj[0,16)x[0,4)@0:4,1"));
}

TEST(SglangExperts, redundant_ones_begin_again) {
  EXPECT_THAT(experts_of(*sglang("tp=4,ep=4,redundant=4", tiny_glm()), 3),
              ElementsAre("1", "2", "3"));
}

TEST(SglangExperts, shared_ones_are_cut_whole_or_fused) {
  const std::string shared = "model.layers.1.mlp.shared_experts.gate_up_proj.weight";
  const auto tp = sglang("tp=4,dp=2,ep=4", tiny_deepseek());
  EXPECT_EQ(rows_on(*tp, shared, 3), "gate_proj[12,16)+0 up_proj[12,16)+4 of 8");
  const auto whole = sglang("tp=4,dp=2,ep=4,shared=whole", tiny_deepseek());
  EXPECT_EQ(rows_on(*whole, shared, 3), "gate_proj[0,16)+0 up_proj[0,16)+16 of 32");
  // Two shared experts of 8 in one tensor of 16, behind the 4 routed ones of each expert rank.
  const auto fused = sglang("tp=4,ep=2,shared=fused", tiny_deepseek());
  EXPECT_THAT(experts_of(*fused, 0), ElementsAre("0", "1", "2", "3", "s0", "s8"));
  EXPECT_THAT(experts_of(*fused, 2), ElementsAre("4", "5", "6", "7", "s0", "s8"));
  EXPECT_EQ(rows_on(*fused, shared, 0), "absent");
  EXPECT_THAT(
      boxes_on(*fused, "model.layers.1.mlp.experts.w13_weight", 1),
      ::testing::EndsWith("gate_proj[12,16)x[0,16)@640:16,1 up_proj[12,16)x[0,16)@704:16,1"));
}

TEST(SglangMtp, a_model_of_its_own_borrows_embedding_and_head) {
  const auto l = sglang("tp=2,pp=2,mtp=1", tiny_deepseek());
  EXPECT_EQ(rows_on(*l, "model.eh_proj.weight", 3), "eh_proj[0,16)+0 of 16");
  EXPECT_EQ(rows_on(*l, "model.decoder.self_attn.q_b_proj.weight", 3), "q_b_proj[48,96)+0 of 48");
  EXPECT_TRUE(slot_named(*l, "model.shared_head.norm.weight", 3));
  EXPECT_TRUE(slot_named(*l, "model.embed_tokens.weight", 3));
  EXPECT_THAT(names_on(*l, 3, "shared_head.head"), ElementsAre());
  const auto qwen = sglang("tp=2,mtp=1", tiny_qwen3_next());
  EXPECT_EQ(rows_on(*qwen, "mtp.fc.weight", 1), "fc[0,16)+0 of 16");
}

TEST(Sglang, says_what_its_models_cannot) {
  const auto message = [](const std::string& keys, const ModelConfig& c) {
    const auto l = try_layout("sglang:" + keys, model_of(c), c);
    return l ? std::string("accepted") : l.error().message;
  };
  EXPECT_THAT(message("dp=2", tiny_dense()),
              HasSubstr("dp=2 does not divide tp=1; dp is part of tp"));
  EXPECT_THAT(message("tp=2,dp=2", tiny_dense()),
              HasSubstr("do not support attention data parallelism"));
  EXPECT_THAT(message("pp=2", tiny_qwen3_next()), HasSubstr("have no pipeline stages"));
  EXPECT_THAT(message("tp=4,ep=4", tiny_moe()),
              HasSubstr("ep=4 does not divide num_experts+redundant=10"));
  EXPECT_THAT(message("tp=4,ep=3", tiny_moe()), HasSubstr("ep=3 does not divide tp=4"));
  EXPECT_THAT(message("shared=fused", tiny_moe()), HasSubstr("shared=fused needs shared experts"));
  EXPECT_THAT(message("placement=linear", tiny_moe()), HasSubstr("unknown key 'placement'"));
}

TEST(Sglang, every_rank_of_every_layout_is_valid_and_together_they_hold_all) {
  for (const ModelConfig& c : tiny_models()) {
    const bool stages = c.model_type != "gemma3_text" && c.model_type != "qwen3_next";
    const bool groups = c.model_type != "gemma3_text" && c.model_type != "llama";
    std::vector<std::string> all = {"tp=1", "tp=2", "tp=4,replicas=2",
                                    "offset=3,tp=2,dtype=float32"};
    if (stages) all.emplace_back("tp=2,pp=3");
    if (groups) all.emplace_back("tp=4,dp=2");
    if (c.num_mtp > 0) all.emplace_back("tp=2,mtp=1");
    if (c.num_mtp > 0 && stages) all.emplace_back("tp=2,pp=2,mtp=1");
    if (c.is_moe())
      for (const char* keys : {"tp=4,ep=2", "tp=4,dp=2,ep=2,transposed=1", "tp=2,ep=2,redundant=2"})
        all.emplace_back(keys);
    if (c.shared_expert_size > 0 && c.gated_mlp)
      for (const char* keys : {"tp=4,ep=2,shared=fused", "tp=4,ep=4,shared=whole"})
        all.emplace_back(keys);
    for (const std::string& keys : all) {
      const auto l = sglang(keys, c);
      l->ranks().for_each([&](Rank r) {
        const auto ok = check_shard_map(*l, r);
        EXPECT_TRUE(ok) << c.model_type << " " << keys << ": " << ok.error().message;
      });
      EXPECT_EQ(first_missing(*l), "") << c.model_type << " " << keys;
    }
  }
}

}  // namespace
}  // namespace reshard
