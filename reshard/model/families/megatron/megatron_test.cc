// SPDX-License-Identifier: Apache-2.0
// Protects: the contents of Megatron's modules on each rank, by hand-worked numbers on the tiny
// models (hidden size 16, 8 heads of 4). tests/megatron/test_modules.py compares with Megatron-Core
// itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/local_text_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kLayer = "decoder.layers.0.";
const std::string kAttention = "decoder.layers.0.self_attention.";

std::string text(const ModelConfig& c, const std::string& layout, const std::string& name,
                 int rank) {
  return local_text(*layout_of(layout, model_of(c), c), name, rank);
}

std::string names(const ModelConfig& c, const std::string& layout, int rank) {
  return local_names(*layout_of(layout, model_of(c), c), rank);
}

TEST(MegatronMla, down_projections_are_duplicated_under_transformer_engine) {
  const ModelConfig c = tiny_deepseek();
  const auto at = [&](const char* name) { return text(c, "megatron:tp=2", kAttention + name, 1); };
  EXPECT_EQ(at("linear_q_down_proj.weight"), "q_a_proj[0,16)x[0,16)@0 of [16, 16]");
  EXPECT_EQ(at("linear_kv_down_proj.weight"), "kv_a_proj_with_mqa[0,12)x[0,16)@0 of [12, 16]");
  // 8 heads of 8 + 4 rows; 8 heads of 8 + 6 rows; o_proj has 8 * 6 columns.
  EXPECT_EQ(at("linear_q_up_proj.weight"), "q_b_proj[48,96)x[0,16)@0 of [48, 16]");
  EXPECT_EQ(at("linear_kv_up_proj.weight"), "kv_b_proj[56,112)x[0,8)@0 of [56, 8]");
  EXPECT_EQ(at("linear_proj.weight"), "o_proj[0,16)x[24,48)@0 of [16, 24]");
  EXPECT_EQ(at("linear_q_up_proj.layer_norm_weight"), "q_a_layernorm[0,16)@0 of [16]");
  EXPECT_EQ(at("linear_kv_up_proj.layer_norm_weight"), "kv_a_layernorm[0,8)@0 of [8]");
  EXPECT_EQ(text(c, "megatron:tp=2", kLayer + "input_layernorm.weight", 1),
            "input_layernorm[0,16)@0 of [16]");
}

TEST(MegatronMla, down_projections_are_cut_by_rows_under_the_local_spec) {
  const ModelConfig c = tiny_deepseek();
  const std::string layout = "megatron:norms=separate,tp=2";
  const auto at = [&](const char* name) { return text(c, layout, kAttention + name, 1); };
  EXPECT_EQ(at("linear_q_down_proj.weight"), "q_a_proj[8,16)x[0,16)@0 of [8, 16]");
  EXPECT_EQ(at("linear_kv_down_proj.weight"), "kv_a_proj_with_mqa[6,12)x[0,16)@0 of [6, 16]");
  EXPECT_EQ(at("q_layernorm.weight"), "q_a_layernorm[0,16)@0 of [16]");
  EXPECT_EQ(at("kv_layernorm.weight"), "kv_a_layernorm[0,8)@0 of [8]");
}

TEST(MegatronMla, fused_down_projection_stacks_each_ranks_pieces) {
  const ModelConfig c = tiny_deepseek();
  const std::string layout = "megatron:mla_down=fused,tp=2";
  EXPECT_EQ(text(c, layout, kAttention + "linear_qkv_down_proj.weight", 1),
            "q_a_proj[8,16)x[0,16)@0 kv_a_proj_with_mqa[6,12)x[0,16)@128 of [14, 16]");
  EXPECT_EQ(text(c, layout, kAttention + "linear_qkv_down_proj.layer_norm_weight", 0),
            "input_layernorm[0,16)@0 of [16]");
  EXPECT_THAT(names(c, layout, 0), Not(HasSubstr("layers.0.input_layernorm")));
}

TEST(MegatronMla, without_q_lora_there_is_one_query_projection) {
  ModelConfig c = tiny_deepseek();
  c.mla.q_rank = 0;
  EXPECT_EQ(text(c, "megatron:tp=4", kAttention + "linear_q_proj.weight", 3),
            "q_proj[72,96)x[0,16)@0 of [24, 16]");
  EXPECT_THAT(names(c, "megatron", 0), Not(HasSubstr("linear_q_down_proj")));
}

TEST(MegatronAttention, gated_groups_are_queries_gates_key_value) {
  // The checkpoint's q_proj: per head 4 query rows, 4 gate rows. A group: 2 heads.
  EXPECT_EQ(text(tiny_qwen3_next(), "megatron:tp=4",
                 "decoder.layers.3.self_attention.linear_qkv.weight", 1),
            "q_proj[16,20)x[0,16)@0 q_proj[24,28)x[0,16)@64 q_proj[20,24)x[0,16)@128 "
            "q_proj[28,32)x[0,16)@192 k_proj[4,8)x[0,16)@256 v_proj[4,8)x[0,16)@320 of [24, 16]");
}

TEST(MegatronAttention, sinks_and_biases_of_gpt_oss) {
  const ModelConfig c = tiny_gpt_oss();
  EXPECT_EQ(text(c, "megatron:tp=2", kAttention + "core_attention.softmax_offset", 1),
            "sinks[4,8)@0 of [4]");
  EXPECT_EQ(text(c, "megatron:tp=4", kAttention + "linear_qkv.bias", 1),
            "bias[8,16)@0 bias[4,8)@8 bias[4,8)@12 of [16]");
  EXPECT_EQ(text(c, "megatron:tp=2", kAttention + "linear_proj.bias", 1), "bias[0,16)@0 of [16]");
  EXPECT_EQ(text(c, "megatron:tp=2", kLayer + "mlp.router.bias", 1), "bias[0,4)@0 of [4]");
}

TEST(MegatronAttention, norms_behind_the_modules_of_gemma) {
  const ModelConfig c = tiny_gemma3();
  const auto at = [&](const char* name) { return text(c, "megatron:tp=2", kLayer + name, 1); };
  EXPECT_EQ(at("self_attention.linear_qkv.layer_norm_weight"), "input_layernorm[0,16)@0 of [16]");
  EXPECT_EQ(at("self_attention.linear_proj.post_layernorm.weight"),
            "post_attention_layernorm[0,16)@0 of [16]");
  EXPECT_EQ(at("mlp.linear_fc1.layer_norm_weight"), "pre_feedforward_layernorm[0,16)@0 of [16]");
  EXPECT_EQ(at("mlp.linear_fc2.post_layernorm.weight"),
            "post_feedforward_layernorm[0,16)@0 of [16]");
}

TEST(MegatronMamba, each_packed_part_is_cut_by_itself) {
  // z, x: 8 heads of 4 rows; B, C: 4 groups of 6; dt: 8. In all 120 rows.
  const ModelConfig c = tiny_nemotron();
  const auto at = [&](const char* name) {
    return text(c, "megatron:tp=2", kLayer + "mixer." + name, 1);
  };
  EXPECT_EQ(at("in_proj.weight"),
            "in_proj[16,32)x[0,16)@0 in_proj[48,64)x[0,16)@256 in_proj[76,88)x[0,16)@512 "
            "in_proj[100,112)x[0,16)@704 in_proj[116,120)x[0,16)@896 of [60, 16]");
  EXPECT_EQ(at("conv1d_weight"),
            "conv1d[16,32)x[0,1)x[0,4)@0 conv1d[44,56)x[0,1)x[0,4)@64 "
            "conv1d[68,80)x[0,1)x[0,4)@112 of [40, 1, 4]");
  EXPECT_EQ(at("conv1d_bias"), "bias[16,32)@0 bias[44,56)@16 bias[68,80)@28 of [40]");
  for (const char* per_head : {"A_log", "D", "dt_bias"})
    EXPECT_EQ(at(per_head), per_head + std::string("[4,8)@0 of [4]"));
  EXPECT_EQ(at("norm.weight"), "norm[16,32)@0 of [16]");
  EXPECT_EQ(at("out_proj.weight"), "out_proj[0,16)x[16,32)@0 of [16, 16]");
}

TEST(MegatronMamba, older_names_have_a_module_for_the_convolution) {
  const ModelConfig c = tiny_nemotron();
  EXPECT_THAT(names(c, "megatron:mamba_names=old", 0), HasSubstr("0.mixer.conv1d.weight\n"));
  EXPECT_THAT(names(c, "megatron:mamba_names=old", 0), HasSubstr("0.mixer.conv1d.bias\n"));
  EXPECT_THAT(names(c, "megatron", 0), Not(HasSubstr("conv1d.weight")));
}

TEST(MegatronMamba, hybrid_layers_have_one_norm_each) {
  // The tiny pattern: Mamba, experts, attention, MLP, Mamba, experts.
  const ModelConfig c = tiny_nemotron();
  const std::string fused = names(c, "megatron", 0), local = names(c, "megatron:norms=separate", 0);
  for (const char* name :
       {"layers.0.mixer.in_proj.layer_norm_weight", "layers.1.pre_mlp_layernorm.weight",
        "layers.2.self_attention.linear_qkv.layer_norm_weight",
        "layers.3.mlp.linear_fc1.layer_norm_weight", "decoder.final_norm.weight"})
    EXPECT_THAT(fused, HasSubstr(name));
  for (const char* name : {"layers.0.norm.weight", "layers.2.input_layernorm.weight",
                           "layers.3.pre_mlp_layernorm.weight", "decoder.final_norm.weight"})
    EXPECT_THAT(local, HasSubstr(name));
  EXPECT_THAT(fused, Not(HasSubstr("layers.0.pre_mlp_layernorm")));
}

TEST(MegatronMamba, pipeline_stages_follow_the_pattern) {
  const std::string second = names(tiny_nemotron(), "megatron:pp=2", 1);
  EXPECT_THAT(second, HasSubstr("decoder.layers.0.mlp.linear_fc1.weight"));
  EXPECT_THAT(second, HasSubstr("decoder.layers.1.mixer.in_proj.weight"));
  EXPECT_THAT(second, HasSubstr("decoder.layers.2.mlp.experts"));
}

TEST(MegatronGatedDelta, key_heads_are_unpacked_and_cut_part_by_part) {
  // A key head's rows in the checkpoint: q 4, k 4, v 2 * 6, z 2 * 6; b 2, a 2.
  const ModelConfig c = tiny_qwen3_next();
  const auto at = [&](const char* name) { return text(c, "megatron:tp=2", kAttention + name, 1); };
  EXPECT_EQ(at("in_proj.weight"),
            "in_proj_qkvz[64,68)x[0,16)@0 in_proj_qkvz[96,100)x[0,16)@64 "
            "in_proj_qkvz[68,72)x[0,16)@128 in_proj_qkvz[100,104)x[0,16)@192 "
            "in_proj_qkvz[72,84)x[0,16)@256 in_proj_qkvz[104,116)x[0,16)@448 "
            "in_proj_qkvz[84,96)x[0,16)@640 in_proj_qkvz[116,128)x[0,16)@832 "
            "in_proj_ba[8,10)x[0,16)@1024 in_proj_ba[12,14)x[0,16)@1056 "
            "in_proj_ba[10,12)x[0,16)@1088 in_proj_ba[14,16)x[0,16)@1120 of [72, 16]");
  EXPECT_EQ(at("conv1d.weight"),
            "conv1d[8,16)x[0,1)x[0,4)@0 conv1d[24,32)x[0,1)x[0,4)@32 "
            "conv1d[56,80)x[0,1)x[0,4)@64 of [40, 1, 4]");
  EXPECT_EQ(at("A_log"), "A_log[4,8)@0 of [4]");
  EXPECT_EQ(at("dt_bias"), "dt_bias[4,8)@0 of [4]");
  EXPECT_EQ(at("out_norm.weight"), "norm[0,6)@0 of [6] as minus_one");
  EXPECT_EQ(at("out_proj.weight"), "out_proj[0,16)x[24,48)@0 of [16, 24]");
  EXPECT_EQ(at("in_proj.layer_norm_weight"), "input_layernorm[0,16)@0 of [16]");
}

TEST(MegatronExperts, shared_expert_is_cut_by_tp_and_its_gate_is_whole) {
  const ModelConfig c = tiny_qwen3_next();
  const std::string front = kLayer + "mlp.shared_experts.";
  EXPECT_EQ(text(c, "megatron:etp=1,tp=2", front + "linear_fc1.weight", 1),
            "gate_proj[8,16)x[0,16)@0 up_proj[8,16)x[0,16)@128 of [16, 16]");
  EXPECT_EQ(text(c, "megatron:etp=1,tp=2", front + "linear_fc2.weight", 1),
            "down_proj[0,16)x[8,16)@0 of [16, 8]");
  EXPECT_EQ(text(c, "megatron:etp=1,tp=2", front + "gate_weight", 1),
            "shared_expert_gate[0,1)x[0,16)@0 of [1, 16]");
}

TEST(MegatronExperts, latent_projections_are_whole_and_ungated_experts_hold_up_alone) {
  // Experts: 12 wide outside, 8 inside; ep=2: 4 each.
  const ModelConfig c = tiny_nemotron();
  const std::string front = "decoder.layers.1.mlp.";
  EXPECT_EQ(text(c, "megatron:tp=2,ep=2", front + "fc1_latent_proj.weight", 3),
            "fc1_latent_proj[0,12)x[0,16)@0 of [12, 16]");
  EXPECT_EQ(text(c, "megatron:tp=2,ep=2", front + "fc2_latent_proj.weight", 3),
            "fc2_latent_proj[0,16)x[0,12)@0 of [16, 12]");
  EXPECT_EQ(text(c, "megatron:tp=2,ep=2", front + "experts.linear_fc1.weight1", 3),
            "up_proj[4,8)x[0,12)@0 of [4, 12]");
  EXPECT_EQ(text(c, "megatron:tp=2,ep=2", front + "experts.linear_fc2.weight1", 3),
            "down_proj[0,12)x[4,8)@0 of [12, 4]");
  EXPECT_EQ(text(c, "megatron:tp=2,ep=2", "decoder.layers.3.mlp.linear_fc1.weight", 1),
            "up_proj[12,24)x[0,16)@0 of [12, 16]");
}

TEST(MegatronExperts, sequential_experts_are_modules_of_their_own) {
  const std::string all = names(tiny_moe(), "megatron:ep=2,experts=sequential", 0);
  EXPECT_THAT(all, HasSubstr("layers.1.mlp.experts.local_experts.4.linear_fc1.weight\n"));
  EXPECT_THAT(all, HasSubstr("layers.1.mlp.experts.local_experts.4.linear_fc2.weight\n"));
  EXPECT_THAT(all, Not(HasSubstr("local_experts.5")));
  EXPECT_THAT(names(tiny_gpt_oss(), "megatron:experts=sequential", 0),
              HasSubstr("layers.1.mlp.experts.local_experts.3.linear_fc1.bias\n"));
}

TEST(MegatronExperts, stacked_experts_come_apart_and_are_transposed) {
  // gate_up_proj [4, 16, 8, 2], down_proj [4, 8, 16]; rank 3: second half of experts 2 and 3.
  const ModelConfig c = tiny_gpt_oss();
  const auto l = layout_of("megatron:ep=2,tp=2", model_of(c), c);
  const std::string front = kLayer + "mlp.experts.";
  EXPECT_EQ(local_text(*l, front + "linear_fc1.weight1", 3),
            "gate_up_proj[3,4)x[0,16)x[4,8)x[0,1)@0 gate_up_proj[3,4)x[0,16)x[4,8)x[1,2)@64 of "
            "[8, 16]");
  EXPECT_EQ(local_text(*l, front + "linear_fc1.bias1", 3),
            "gate_up_proj_bias[3,4)x[4,8)x[0,1)@0 gate_up_proj_bias[3,4)x[4,8)x[1,2)@4 of [8]");
  EXPECT_EQ(local_text(*l, front + "linear_fc2.weight0", 3),
            "down_proj[2,3)x[4,8)x[0,16)@0 of [16, 4]");
  EXPECT_EQ(local_text(*l, front + "linear_fc2.bias0", 3), "down_proj_bias[2,3)x[0,16)@0 of [16]");
  for (SlotId id : l->slots_of(Rank(3))) {
    const auto strides = [&] { return l->local(id, Rank(3)).fragments[0].where.strides; };
    if (l->slot(id).name == front + "linear_fc1.weight1") {
      EXPECT_EQ(strides()[1], 1);   // hidden size
      EXPECT_EQ(strides()[2], 16);  // inner size
    }
    if (l->slot(id).name == front + "linear_fc2.weight0") {
      EXPECT_EQ(strides()[1], 1);
      EXPECT_EQ(strides()[2], 4);
    }
  }
}

TEST(MegatronExperts, their_grid_has_its_own_tensor_and_data_parallel) {
  // 8 ranks, tp=1: etp=2, ep=2, expert dp=2. Rank 6 has etp 0, ep 1.
  const ModelConfig c = tiny_moe();
  EXPECT_EQ(
      text(c, "megatron:dp=8,ep=2,etp=2", "decoder.layers.1.mlp.experts.linear_fc1.weight0", 6),
      "gate_proj[0,4)x[0,16)@0 up_proj[0,4)x[0,16)@64 of [8, 16]");
  const auto l = layout_of("megatron:dp=8,ep=2,etp=2", model_of(c), c);
  const auto tensor_of = [&](int rank) {
    for (SlotId id : l->slots_of(Rank(rank)))
      if (l->slot(id).name == "decoder.layers.1.mlp.experts.linear_fc2.weight0")
        return l->model()[l->local(id, Rank(rank)).fragments[0].tensor].name;
    return std::string("absent");
  };
  for (const auto& [rank, expert] : {std::pair{0, 0}, {1, 0}, {2, 5}, {3, 5}, {4, 0}, {6, 5}})
    EXPECT_THAT(tensor_of(rank), HasSubstr("experts." + std::to_string(expert) + ".down"));
}

TEST(MegatronMtp, is_with_the_loss_and_has_an_embedding_of_its_own) {
  const ModelConfig c = tiny_deepseek();
  const std::string last = names(c, "megatron:pp=2", 1), first = names(c, "megatron:pp=2", 0);
  for (const char* name :
       {"embedding.word_embeddings.weight\n", "mtp.layers.0.enorm.weight\n",
        "mtp.layers.0.hnorm.weight\n", "mtp.layers.0.final_layernorm.weight\n",
        "mtp.layers.0.transformer_layer.input_layernorm.weight\n",
        "mtp.layers.0.transformer_layer.self_attention.linear_kv_up_proj.weight\n",
        "mtp.layers.0.transformer_layer.mlp.experts.linear_fc1.weight7\n"})
    EXPECT_THAT(last, HasSubstr(name));
  EXPECT_THAT(first, Not(HasSubstr("mtp.")));
  EXPECT_EQ(text(c, "megatron:tp=2", "mtp.layers.0.eh_proj.weight", 1),
            "eh_proj[8,16)x[0,32)@0 of [8, 32]");
  EXPECT_EQ(text(c, "megatron", "mtp.layers.0.final_layernorm.weight", 0), "norm[0,16)@0 of [16]");
  EXPECT_THAT(names(c, "megatron:mtp_names=new", 0),
              HasSubstr("mtp.layers.0.mtp_model_layer.input_layernorm.weight"));
  EXPECT_THAT(names(tiny_nemotron(), "megatron", 0),
              HasSubstr("mtp.layers.0.mtp_model_layer.layers.1.mlp.router.weight"));
}

TEST(MegatronChunks, are_in_names_where_a_stage_has_several) {
  const ModelConfig c = tiny_deepseek();
  for (const char* layout : {"megatron:pp=2,layout=Et|t|t|tmL", "megatron:pp=2,vpp=2"}) {
    EXPECT_THAT(names(c, layout, 0), HasSubstr("model0.embedding.word_embeddings.weight\n"));
    EXPECT_THAT(names(c, layout, 1), HasSubstr("model1.decoder.final_layernorm.weight\n"));
    EXPECT_THAT(names(c, layout, 1), HasSubstr("model1.mtp.layers.0.enorm.weight\n"));
  }
  EXPECT_THAT(names(c, "megatron:pp=2,layout=Et|tttmL", 0), Not(HasSubstr("model0.")));
}

TEST(MegatronMtp, can_be_left_out) {
  for (const ModelConfig& c : {tiny_deepseek(), tiny_qwen3_next(), tiny_nemotron()}) {
    EXPECT_THAT(names(c, "megatron:mtp=0,pp=2", 1), Not(HasSubstr("mtp.")));
    EXPECT_THAT(names(c, "megatron:mtp=0,pp=2", 1), Not(HasSubstr("word_embeddings")));
    expect_whole(*layout_of("megatron:mtp=0,pp=2", model_of(c), c));
  }
}

TEST(MegatronValues, gamma_says_what_norms_hold) {
  const ModelConfig next = tiny_qwen3_next();
  const std::string in = kAttention + "in_proj.layer_norm_weight",
                    out = kAttention + "out_norm.weight";
  EXPECT_EQ(text(next, "megatron:gamma=zero_centered", in, 0), "input_layernorm[0,16)@0 of [16]");
  EXPECT_EQ(text(next, "megatron:gamma=zero_centered", out, 0), "norm[0,6)@0 of [6] as minus_one");
  EXPECT_EQ(text(next, "megatron:gamma=plain", in, 0),
            "input_layernorm[0,16)@0 of [16] as plus_one");
  EXPECT_EQ(text(next, "megatron:gamma=plain", out, 0), "norm[0,6)@0 of [6]");
  EXPECT_EQ(text(next, "megatron:gamma=stored", out, 0), "norm[0,6)@0 of [6]");
  EXPECT_EQ(text(tiny_dense(), "megatron:gamma=zero_centered", "decoder.final_layernorm.weight", 0),
            "norm[0,16)@0 of [16] as minus_one");
  // A gated norm of a Mamba mixer is not one of the model's norms.
  EXPECT_EQ(text(tiny_nemotron(), "megatron:gamma=zero_centered", kLayer + "mixer.norm.weight", 0),
            "norm[0,32)@0 of [32]");
}

TEST(MegatronValues, norms_hold_what_megatron_trains_the_class_with) {
  const ModelConfig next = tiny_qwen3_next();
  const auto at = [](const ModelConfig& c, const std::string& name) {
    return text(c, "megatron", name, 0);
  };
  // The one norm that the checkpoint of Qwen3-Next does not centre on zero, among those it does.
  EXPECT_EQ(at(next, kAttention + "out_norm.weight"), "norm[0,6)@0 of [6] as minus_one");
  EXPECT_EQ(at(next, kAttention + "in_proj.layer_norm_weight"), "input_layernorm[0,16)@0 of [16]");
  EXPECT_EQ(at(next, "decoder.final_layernorm.weight"), "norm[0,16)@0 of [16]");
  EXPECT_EQ(at(tiny_gemma3(), "decoder.final_layernorm.weight"), "norm[0,16)@0 of [16]");
  EXPECT_EQ(at(tiny_dense(), "decoder.final_layernorm.weight"), "norm[0,16)@0 of [16]");
}

TEST(MegatronValues, a_stored_layout_says_what_norms_hold) {
  const auto said = [](const char* layout, const ModelConfig& c) {
    return to_string(with_explicit_defaults(*parse_layout(layout), c));
  };
  EXPECT_EQ(said("megatron:tp=2", tiny_qwen3_next()), "megatron:gamma=zero_centered,tp=2");
  EXPECT_EQ(said("megatron:gamma=stored", tiny_qwen3_next()), "megatron:gamma=stored");
  for (const ModelConfig& c : {tiny_dense(), tiny_gemma3(), tiny_nemotron()})
    EXPECT_EQ(said("megatron:tp=2", c), "megatron:tp=2");
  EXPECT_EQ(said("vllm:tp=2", tiny_qwen3_next()), "vllm:tp=2");
}

TEST(MegatronValues, the_expert_bias_is_float32_whatever_the_checkpoint_stores) {
  for (const ModelConfig& c : {tiny_deepseek(), tiny_glm(), tiny_nemotron()}) {
    const auto model = model_of(c, {"e_score_correction_bias"}, DType::bf16);
    const std::string bias = c.model_type == "nemotron_h"
                                 ? "decoder.layers.1.mlp.router.expert_bias"
                                 : "decoder.layers.3.mlp.router.expert_bias";
    for (const char* layout : {"megatron", "megatron:dtype=bfloat16"})
      EXPECT_THAT(local_text(*layout_of(layout, model, c), bias, 0), HasSubstr(" F32"));
  }
}

TEST(MegatronValues, gates_and_ups_alternate_in_blocks_where_the_fused_experts_want_them) {
  // Experts of width 8, two ranks: 4 gates and 4 ups each, in turns of 2.
  const std::string fc1 = "decoder.layers.1.mlp.experts.linear_fc1.weight0";
  EXPECT_EQ(text(tiny_deepseek(), "megatron:glu_interleave=2,etp=2,tp=2", fc1, 1),
            "gate_proj[4,6)x[0,16)@0 up_proj[4,6)x[0,16)@32 gate_proj[6,8)x[0,16)@64 "
            "up_proj[6,8)x[0,16)@96 of [8, 16]");
  const std::string shared = "decoder.layers.1.mlp.shared_experts.linear_fc1.weight";
  EXPECT_EQ(text(tiny_deepseek(), "megatron:shared_glu_interleave=4,tp=4", shared, 3),
            "gate_proj[12,16)x[0,16)@0 up_proj[12,16)x[0,16)@64 of [8, 16]");
  const ModelConfig oss = tiny_gpt_oss();
  const std::string stacked = "decoder.layers.0.mlp.experts.linear_fc1.";
  const auto at = [&](const std::string& keys, const char* kind) {
    return text(oss, "megatron:" + keys, stacked + kind, 0);
  };
  EXPECT_THAT(at("glu_interleave=8", "bias1"), at("etp=1", "bias1"));
  EXPECT_THAT(at("glu_interleave=4", "bias1"),
              "gate_up_proj_bias[1,2)x[0,4)x[0,1)@0 gate_up_proj_bias[1,2)x[0,4)x[1,2)@4 "
              "gate_up_proj_bias[1,2)x[4,8)x[0,1)@8 gate_up_proj_bias[1,2)x[4,8)x[1,2)@12 of [16]");
}

TEST(MegatronValues, dtype_holds_for_weights_but_not_for_the_expert_bias) {
  const ModelConfig c = tiny_deepseek();
  const std::string bias = "decoder.layers.1.mlp.router.expert_bias";
  EXPECT_EQ(text(c, "megatron:dtype=float16", kAttention + "linear_q_down_proj.weight", 0),
            "q_a_proj[0,16)x[0,16)@0 of [16, 16] F16");
  EXPECT_EQ(text(c, "megatron:dtype=float16", bias, 0),
            "e_score_correction_bias[0,8)@0 of [8] F32");
}

TEST(MegatronLayouts, hold_every_element_of_every_model) {
  for (const ModelConfig& c : tiny_models())
    for (const char* layout :
         {"megatron", "megatron:tp=2,pp=2", "megatron:tp=4,etp=2,norms=separate",
          "megatron:cp=2,dp=2,tp=2,order=tp-cp-ep-pp-dp,pp=2", "megatron:pp=2,vpp=1,offset=3",
          "megatron:mtp_names=new,mamba_names=old,experts=sequential,tp=2"})
      expect_whole(*layout_of(layout, model_of(c), c));
  for (const ModelConfig& c : {tiny_deepseek(), tiny_gpt_oss(), tiny_qwen3_next(), tiny_nemotron()})
    for (const char* layout : {"megatron:ep=4,etp=1,tp=2", "megatron:ep=2,etp=2,dp=8,pp=2"})
      expect_whole(*layout_of(layout, model_of(c), c));
  for (const ModelConfig& c : {tiny_deepseek(), tiny_gpt_oss()})
    expect_whole(*layout_of("megatron:glu_interleave=2,etp=2,ep=2,tp=4", model_of(c), c));
  const ModelConfig c = tiny_deepseek();
  for (const char* layout : {"megatron:mla_down=fused,tp=2", "megatron:pp=2,vpp=2,tp=2",
                             "megatron:pp=2,layout=Et|tt|t|mL"})
    expect_whole(*layout_of(layout, model_of(c), c));
}

TEST(MegatronErrors, name_what_does_not_divide) {
  const auto message = [](const std::string& layout, const ModelConfig& c) {
    const auto l = try_layout(layout, model_of(c), c);
    return l ? std::string("accepted") : l.error().message;
  };
  ModelConfig biased = tiny_deepseek(), narrow = tiny_deepseek(), mamba = tiny_nemotron();
  biased.mla.bias = mamba.mamba2.bias = true;
  narrow.mla.q_rank = 0;
  EXPECT_EQ(message("megatron:tp=8", tiny_nemotron()), "megatron: tp=8 does not divide n_groups=4");
  EXPECT_EQ(message("megatron:tp=8,etp=1", tiny_qwen3_next()),
            "megatron: tp=8 does not divide linear_num_key_heads=4");
  EXPECT_EQ(message("megatron:tp=8,mla_down=sharded", tiny_deepseek()),
            "megatron: tp=8 does not divide kv_lora_rank+qk_rope_head_dim=12");
  EXPECT_EQ(message("megatron:tp=8", tiny_deepseek()), "accepted");
  EXPECT_EQ(message("megatron:etp=16", tiny_deepseek()),
            "megatron: etp=16 does not divide moe_intermediate_size=8");
  EXPECT_THAT(message("megatron:mla_down=fused", narrow), HasSubstr("needs q_lora_rank"));
  EXPECT_THAT(message("megatron", biased), HasSubstr("have no biases, but the model does"));
  EXPECT_THAT(message("megatron", mamba), HasSubstr("have no biases in in_proj"));
  EXPECT_THAT(message("megatron:gamma=one", tiny_dense()),
              HasSubstr("gamma=one must be one of stored, plain, zero_centered"));
  EXPECT_EQ(message("megatron:glu_interleave=3", tiny_deepseek()),
            "megatron: glu_interleave=3 does not divide the gates of an expert on one rank=8");
  EXPECT_EQ(message("megatron:glu_interleave=8,etp=2,tp=2", tiny_deepseek()),
            "megatron: glu_interleave=8 does not divide the gates of an expert on one rank=4");
  for (const char* key : {"glu_interleave", "shared_glu_interleave"})
    EXPECT_THAT(message(std::string("megatron:") + key + "=2", tiny_dense()),
                HasSubstr("=2: LlamaForCausalLM has no such experts with gate projections"));
  EXPECT_THAT(message("megatron:glu_interleave=2", tiny_nemotron()),
              HasSubstr("NemotronHForCausalLM has no such experts with gate projections"));
  EXPECT_THAT(message("megatron:mtp=2", tiny_dense()), HasSubstr("mtp=2 must be one of 0, 1"));
}

}  // namespace
}  // namespace reshard
