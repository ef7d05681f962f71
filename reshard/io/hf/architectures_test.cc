// SPDX-License-Identifier: Apache-2.0
// Protects: what a config.json says of experts, latent attention, mixers and multi-token prediction
// means here what it means to transformers, absent keys included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/hf/config.h"
#include "reshard/model/canonical.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A config of this architecture with these sizes and `more` keys, which begin with a comma.
std::string config_text(std::string_view architecture, std::string_view more) {
  return R"({"architectures": [")" + std::string(architecture) +
         R"("], "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 32,
            "vocab_size": 1000, "moe_intermediate_size": 96)" +
         std::string(more) + "}";
}

ModelConfig parse(std::string_view architecture, std::string_view more) {
  const auto config = parse_config(config_text(architecture, more));
  EXPECT_TRUE(config) << config.error().message;
  return config.value_or(ModelConfig{});
}

std::string error_of(std::string_view architecture, std::string_view more) {
  const auto config = parse_config(config_text(architecture, more));
  EXPECT_FALSE(config);
  return config ? "" : config.error().message;
}

/// One letter a layer: a attention, l latent, g gated delta, m Mamba, then d, e or -: its MLP.
std::string kinds(const std::vector<LayerKind>& layers) {
  std::string text;
  for (const LayerKind& kind : layers) {
    text += std::string("almg-")[static_cast<std::size_t>(kind.mixer)];
    text += std::string("de-")[static_cast<std::size_t>(kind.ffn)];
    text += ' ';
  }
  return text;
}

TEST(HfArchitectures, deepseek_defaults_are_those_of_its_class) {
  const auto c =
      parse("DeepseekV3ForCausalLM", R"(, "num_hidden_layers": 5, "n_routed_experts": 8)");
  EXPECT_EQ(c.model_type, "deepseek_v3");
  EXPECT_EQ(c.mla.q_rank, 1536);
  EXPECT_EQ(c.mla.kv_rank, 512);
  EXPECT_EQ(c.mla.nope_dim, 128);
  EXPECT_EQ(c.mla.rope_dim, 64);
  EXPECT_EQ(c.mla.value_dim, 128);
  EXPECT_FALSE(c.mla.bias || c.qk_norm || c.tie_word_embeddings);
  EXPECT_EQ(kinds(c.layers), "ld ld ld le le ");
  EXPECT_EQ(c.shared_expert_size, 96);
  EXPECT_TRUE(c.router_expert_bias);
  EXPECT_EQ(c.num_mtp, 1);
  EXPECT_EQ(c.mtp_names, MtpNames::trailing);
  EXPECT_EQ(kinds(c.mtp_block), "le ");
  EXPECT_EQ(c.num_key_value_heads, 32);
}

TEST(HfArchitectures, deepseek_without_q_lora_and_with_shared_experts) {
  const auto c = parse("DeepseekV3ForCausalLM",
                       R"(, "num_hidden_layers": 2, "n_routed_experts": 8, "q_lora_rank": null,
      "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 10, "v_head_dim": 14,
      "n_shared_experts": 2, "first_k_dense_replace": 0, "attention_bias": true,
      "num_nextn_predict_layers": 0)");
  EXPECT_EQ(c.mla.q_rank, 0);
  EXPECT_EQ(c.mla.kv_rank, 16);
  EXPECT_EQ(c.mla.nope_dim, 12);
  EXPECT_EQ(c.mla.rope_dim, 10);
  EXPECT_EQ(c.mla.value_dim, 14);
  EXPECT_TRUE(c.mla.bias);
  EXPECT_EQ(c.shared_expert_size, 192);
  EXPECT_EQ(kinds(c.layers), "le le ");
  EXPECT_EQ(c.num_mtp, 0);
  EXPECT_TRUE(c.mtp_block.empty());
}

TEST(HfArchitectures, no_shared_experts_is_zero_or_null) {
  for (const auto* none : {"0", "null"})
    EXPECT_EQ(parse("DeepseekV3ForCausalLM", std::string(
                                                 R"(, "num_hidden_layers": 1, "n_routed_experts": 8,
                        "n_shared_experts": )") + none)
                  .shared_expert_size,
              0);
}

TEST(HfArchitectures, kimi_is_deepseek_under_a_type_of_its_own) {
  const auto c = parse("DeepseekV3ForCausalLM", R"(, "model_type": "kimi_k2",
      "num_hidden_layers": 3, "n_routed_experts": 12, "first_k_dense_replace": 1)");
  EXPECT_EQ(c.model_type, "kimi_k2");
  EXPECT_EQ(c.architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(kinds(c.layers), "ld le le ");
}

TEST(HfArchitectures, a_quantisation_is_noted_and_the_sizes_are_plain) {
  const auto more = std::string(R"(, "num_hidden_layers": 1, "n_routed_experts": 8)");
  const auto c =
      parse("DeepseekV3ForCausalLM", more + R"(, "quantization_config": {"quant_method": "fp8"})");
  EXPECT_EQ(c.quantization, "fp8");
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_EQ(parse("DeepseekV3ForCausalLM", more + R"(, "quantization_config": {})").quantization,
            "unknown");
  EXPECT_EQ(parse("DeepseekV3ForCausalLM", more).quantization, "");
}

TEST(HfArchitectures, glm_has_qkv_biases_and_head_norms_only_where_it_says_so) {
  const auto* sizes = R"(, "num_hidden_layers": 2, "n_routed_experts": 8)";
  const auto plain = parse("Glm4MoeForCausalLM", sizes);
  EXPECT_FALSE(plain.attention_bias || plain.qk_norm);
  EXPECT_EQ(plain.num_key_value_heads, 8);
  EXPECT_EQ(plain.head_dim, 8);
  EXPECT_EQ(kinds(plain.layers), "ad ae ");
  EXPECT_EQ(kinds(plain.mtp_block), "ae ");
  const auto c = parse("Glm4MoeForCausalLM",
                       std::string(sizes) + R"(, "attention_bias": true, "use_qk_norm": true)");
  EXPECT_TRUE(c.attention_bias && c.qk_norm && c.router_expert_bias);
  EXPECT_FALSE(c.attention_output_bias);
}

TEST(HfArchitectures, gpt_oss_has_sinks_biases_and_stacked_experts) {
  const auto c = parse("GptOssForCausalLM", R"(, "num_hidden_layers": 2, "num_local_experts": 8)");
  EXPECT_TRUE(c.attention_bias && c.attention_output_bias && c.attention_sinks && c.router_bias &&
              c.stacked_experts);
  EXPECT_FALSE(c.qk_norm || c.router_expert_bias);
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.moe_intermediate_size, 512) << "of its experts, whatever moe_intermediate_size says";
  EXPECT_EQ(kinds(c.layers), "ae ae ");
}

TEST(HfArchitectures, qwen3_next_mixes_linear_and_full_attention) {
  const auto c = parse("Qwen3NextForCausalLM", R"(, "num_hidden_layers": 5, "num_experts": 8)");
  EXPECT_EQ(kinds(c.layers), "ge ge ge ae ge ");
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_TRUE(c.attention_gate && c.qk_norm && c.zero_centered_norms && c.shared_expert_gate);
  EXPECT_FALSE(c.attention_bias || c.attention_output_bias);
  EXPECT_EQ(c.shared_expert_size, 512);
  EXPECT_EQ(c.gated_delta.key_heads, 16);
  EXPECT_EQ(c.gated_delta.value_heads, 32);
  EXPECT_EQ(c.gated_delta.key_dim, 128);
  EXPECT_EQ(c.gated_delta.value_dim, 128);
  EXPECT_EQ(c.gated_delta.kernel, 4);
  EXPECT_EQ(c.num_mtp, 1) << "which published configs do not speak of";
  EXPECT_EQ(c.mtp_names, MtpNames::qwen);
  EXPECT_EQ(kinds(c.mtp_block), "ae ");
}

TEST(HfArchitectures, qwen3_next_reads_every_key_of_its_own) {
  const auto c = parse("Qwen3NextForCausalLM", R"(, "num_hidden_layers": 3, "num_experts": 8,
      "full_attention_interval": 2, "linear_num_key_heads": 3, "linear_num_value_heads": 6,
      "linear_key_head_dim": 5, "linear_value_head_dim": 7, "linear_conv_kernel_dim": 9,
      "shared_expert_intermediate_size": 11, "num_nextn_predict_layers": 0, "mlp_only_layers": [0],
      "attention_bias": true)");
  EXPECT_EQ(kinds(c.layers), "gd ae ge ");
  EXPECT_EQ(c.gated_delta.key_heads, 3);
  EXPECT_EQ(c.gated_delta.value_heads, 6);
  EXPECT_EQ(c.gated_delta.key_dim, 5);
  EXPECT_EQ(c.gated_delta.value_dim, 7);
  EXPECT_EQ(c.gated_delta.kernel, 9);
  EXPECT_EQ(c.shared_expert_size, 11);
  EXPECT_EQ(c.num_mtp, 0);
  EXPECT_TRUE(c.attention_bias && c.attention_output_bias);
  EXPECT_EQ(kinds(parse("Qwen3NextForCausalLM", R"(, "num_hidden_layers": 2, "num_experts": 8,
      "layer_types": ["full_attention", "linear_attention"])")
                      .layers),
            "ae ge ");
}

TEST(HfArchitectures, gemma3_is_tied_and_has_four_norms) {
  const auto c = parse("Gemma3ForCausalLM", R"(, "num_hidden_layers": 2)");
  EXPECT_EQ(c.model_type, "gemma3_text");
  EXPECT_TRUE(c.tie_word_embeddings && c.qk_norm && c.sandwich_norms && c.zero_centered_norms);
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_FALSE(
      parse("Gemma3ForCausalLM", R"(, "num_hidden_layers": 2, "tie_word_embeddings": false)")
          .tie_word_embeddings);
}

TEST(HfArchitectures, gemma3_with_a_vision_tower_is_told_what_would_work) {
  const auto text = error_of("Gemma3ForConditionalGeneration", R"(, "num_hidden_layers": 2)");
  EXPECT_THAT(text, HasSubstr("text_config alone with architectures [\"Gemma3ForCausalLM\"]"));
  EXPECT_THAT(text, HasSubstr("rules:FILE"));
}

TEST(HfArchitectures, nemotron_layers_are_letters_or_words) {
  const auto* experts = R"(, "n_routed_experts": 8, "num_hidden_layers": 4)";
  for (const auto* layers :
       {R"("hybrid_override_pattern": "ME*-")",
        R"("layers_block_type": ["mamba", "moe", "attention", "mlp"])",
        R"("layer_types": ["linear_attention", "moe", "full_attention", "mlp"])",
        R"("layers_block_type": ["mamba", "moe", "attention", "mlp"],
                                "hybrid_override_pattern": "M")"}) {
    const auto c = parse("NemotronHForCausalLM", std::string(experts).append(", ").append(layers));
    EXPECT_EQ(kinds(c.layers), "m- -e a- -d ") << layers;
    EXPECT_EQ(c.num_hidden_layers, 4);
  }
}

TEST(HfArchitectures, nemotron_defaults_are_those_of_its_class) {
  const auto c = parse("NemotronHForCausalLM",
                       R"(, "hybrid_override_pattern": "ME", "n_routed_experts": 8,
      "tie_word_embeddings": true)");
  EXPECT_EQ(c.num_hidden_layers, 2) << "the length of the pattern";
  EXPECT_EQ(c.mamba2.heads, 128);
  EXPECT_EQ(c.mamba2.head_dim, 64);
  EXPECT_EQ(c.mamba2.groups, 8);
  EXPECT_EQ(c.mamba2.state, 128);
  EXPECT_EQ(c.mamba2.kernel, 4);
  EXPECT_FALSE(c.mamba2.bias);
  EXPECT_TRUE(c.mamba2.conv_bias);
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.moe_latent_size, 0);
  EXPECT_EQ(c.shared_expert_size, 7688);
  EXPECT_TRUE(c.router_expert_bias);
  EXPECT_FALSE(c.gated_mlp || c.tie_word_embeddings || c.attention_bias);
  EXPECT_EQ(c.num_mtp, 0);
}

TEST(HfArchitectures, nemotron_heads_are_as_wide_as_either_key_says) {
  const auto width = [](const std::string& keys) {
    return parse("NemotronHForCausalLM", R"(, "hybrid_override_pattern": "M*")" + keys).head_dim;
  };
  EXPECT_EQ(width(R"(, "attention_head_dim": 48)"), 48);
  EXPECT_EQ(width(R"(, "attention_head_dim": 48, "head_dim": null)"), 48);
  EXPECT_EQ(width(R"(, "attention_head_dim": 48, "head_dim": 96)"), 96);
  EXPECT_EQ(width(""), 128);
}

TEST(HfArchitectures, nemotron_reads_every_key_of_its_own) {
  const auto c = parse("NemotronHForCausalLM",
                       R"(, "hybrid_override_pattern": "ME-", "num_local_experts": 6,
      "mamba_num_heads": 6, "mamba_head_dim": 5, "n_groups": 3, "ssm_state_size": 7,
      "conv_kernel": 2, "use_bias": true, "use_conv_bias": false, "moe_latent_size": 24,
      "moe_shared_expert_intermediate_size": 40, "num_nextn_predict_layers": 2,
      "mtp_hybrid_override_pattern": "*E")");
  EXPECT_EQ(c.mamba2.heads, 6);
  EXPECT_EQ(c.mamba2.head_dim, 5);
  EXPECT_EQ(c.mamba2.groups, 3);
  EXPECT_EQ(c.mamba2.state, 7);
  EXPECT_EQ(c.mamba2.kernel, 2);
  EXPECT_TRUE(c.mamba2.bias);
  EXPECT_FALSE(c.mamba2.conv_bias);
  EXPECT_EQ(c.num_experts, 6);
  EXPECT_EQ(c.moe_latent_size, 24);
  EXPECT_EQ(c.shared_expert_size, 40);
  EXPECT_EQ(c.num_mtp, 2);
  EXPECT_EQ(c.mtp_names, MtpNames::nemotron);
  EXPECT_EQ(kinds(c.mtp_block), "a- -e ");
}

TEST(HfArchitectures, nemotron_mtp_lists_win_unless_they_are_the_usual_one) {
  const auto block = [](std::string_view more) {
    return kinds(parse("NemotronHForCausalLM",
                       R"(, "layer_types": ["moe"], "n_routed_experts": 8,
      "num_nextn_predict_layers": 1)" +
                           std::string(more))
                     .mtp_block);
  };
  EXPECT_EQ(block(""), "a- -e ");
  EXPECT_EQ(block(R"(, "mtp_hybrid_override_pattern": "M-")"), "m- -d ");
  EXPECT_EQ(block(R"(, "mtp_layers_block_type": ["moe"], "mtp_hybrid_override_pattern": "M-")"),
            "-e ");
  EXPECT_EQ(block(R"(, "mtp_layers_block_type": ["full_attention", "moe"],
                      "mtp_hybrid_override_pattern": "M-")"),
            "m- -d ");
}

TEST(HfArchitectures, nemotron_without_expert_layers_is_dense) {
  const auto c = parse("NemotronHForCausalLM", R"(, "hybrid_override_pattern": "M-*",
      "mlp_bias": true)");
  EXPECT_FALSE(c.is_moe());
  EXPECT_TRUE(c.mlp_bias);
}

TEST(HfArchitectures, changed_layers_cut_and_repeat_patterns_but_not_those_of_mtp) {
  const auto* text = R"({"hybrid_override_pattern": "ME*-", "mtp_hybrid_override_pattern": "*E-M",
      "mtp_layers_block_type": ["a", "b", "c", "d"], "layers_block_type": ["a", "b", "c", "d"],
      "first_k_dense_replace": 3})";
  const auto changed = [&](Index layers) {
    auto line = config_with_layers(text, layers).value_or("");
    std::erase_if(line, [](char c) { return c == ' ' || c == '\n'; });
    return line;
  };
  EXPECT_EQ(changed(3), R"({"hybrid_override_pattern":"ME*","mtp_hybrid_override_pattern":"*E-M",)"
                        R"("mtp_layers_block_type":["a","b","c","d"],)"
                        R"("layers_block_type":["a","b","c"],"first_k_dense_replace":3})");
  EXPECT_THAT(changed(6), HasSubstr(R"("hybrid_override_pattern":"ME*-ME")"));
  EXPECT_THAT(changed(6), HasSubstr(R"("layers_block_type":["a","b","c","d","a","b"])"));
  const auto pattern_alone = config_with_layers(R"({"hybrid_override_pattern": "ME"})", 1);
  EXPECT_THAT(pattern_alone.value_or(""), HasSubstr(R"("hybrid_override_pattern": "M")"));
}

TEST(HfArchitectures, a_config_of_plain_weights_loses_its_quantisation_alone) {
  EXPECT_EQ(config_of_plain_weights(R"({"a": 1.50, "quantization_config": {"b": 2}, "c": 3})"),
            "{\n  \"a\": 1.50,\n  \"c\": 3\n}\n");
  EXPECT_EQ(config_of_plain_weights(R"({"a":  1})"), R"({"a":  1})");
}

TEST(HfArchitectures, every_class_gives_canonical_tensors) {
  for (const auto* name : {"DeepseekV3", "Glm4Moe", "GptOss", "Qwen3Next", "Gemma3", "NemotronH"}) {
    const auto c = parse(std::string(name) + "ForCausalLM",
                         R"(, "num_hidden_layers": 4, "num_experts": 4, "n_routed_experts": 4,
                         "num_local_experts": 4, "hybrid_override_pattern": "ME*-")");
    EXPECT_TRUE(canonical_tensors(c)) << name;
  }
}

}  // namespace
}  // namespace reshard
