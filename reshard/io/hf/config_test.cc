// SPDX-License-Identifier: Apache-2.0
// Protects: a config.json means here what it means to transformers, absent keys included.
#include "reshard/io/hf/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

/// A config of this architecture with these sizes and `more` keys, which begin with a comma.
std::string config_text(std::string_view architecture, std::string_view more) {
  return R"({"architectures": [")" + std::string(architecture) +
         R"("], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
            "num_attention_heads": 32, "vocab_size": 1000)" +
         std::string(more) + "}";
}

ModelConfig parse(std::string_view architecture, std::string_view more = "") {
  const auto config = parse_config(config_text(architecture, more));
  EXPECT_TRUE(config) << config.error().message;
  return config.value_or(ModelConfig{});
}

TEST(HfConfig, llama_defaults_are_those_of_its_class) {
  const auto c = parse("LlamaForCausalLM");
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_EQ(c.model_type, "llama");
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_FALSE(c.has_dtype);
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.intermediate_size, 512);
  EXPECT_EQ(c.num_hidden_layers, 4);
  EXPECT_EQ(c.num_attention_heads, 32);
  EXPECT_EQ(c.num_key_value_heads, 32);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.vocab_size, 1000);
  EXPECT_FALSE(c.tie_word_embeddings || c.attention_bias || c.attention_output_bias || c.mlp_bias ||
               c.qk_norm || c.is_moe());
}

TEST(HfConfig, llama_attention_bias_means_all_four_projections) {
  const auto c =
      parse("LlamaForCausalLM", R"(, "attention_bias": true, "mlp_bias": true, "head_dim": 16,
      "num_key_value_heads": 8, "tie_word_embeddings": true, "torch_dtype": "float16")");
  EXPECT_TRUE(c.attention_bias && c.attention_output_bias && c.mlp_bias && c.tie_word_embeddings);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.dtype, DType::f16);
  EXPECT_TRUE(c.has_dtype);
}

TEST(HfConfig, mistral_and_mixtral_have_no_biases_and_8_key_value_heads) {
  for (const auto* name : {"MistralForCausalLM", "MixtralForCausalLM"}) {
    const auto c = parse(name, R"(, "attention_bias": true, "num_local_experts": 8)");
    EXPECT_EQ(c.num_key_value_heads, 8);
    EXPECT_FALSE(c.attention_bias || c.attention_output_bias || c.mlp_bias);
  }
}

TEST(HfConfig, qwen2_always_has_qkv_biases_and_no_other) {
  const auto c = parse("Qwen2ForCausalLM", R"(, "num_key_value_heads": 2)");
  EXPECT_TRUE(c.attention_bias);
  EXPECT_FALSE(c.attention_output_bias);
  EXPECT_FALSE(c.qk_norm);
}

TEST(HfConfig, qwen3_has_head_norms_and_a_head_dim_of_its_own) {
  const auto c = parse("Qwen3ForCausalLM", R"(, "num_key_value_heads": 4, "dtype": "float32")");
  EXPECT_TRUE(c.qk_norm);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.dtype, DType::f32);
  EXPECT_EQ(parse("Qwen3ForCausalLM").num_key_value_heads, 32);
  EXPECT_EQ(parse("Qwen3ForCausalLM", R"(, "head_dim": 64)").head_dim, 64);
}

TEST(HfConfig, qwen3_moe_names_its_dense_layers) {
  const auto c = parse("Qwen3MoeForCausalLM", R"(, "num_experts": 16, "moe_intermediate_size": 96,
      "decoder_sparse_step": 2, "mlp_only_layers": [3])");
  EXPECT_EQ(c.num_experts, 16);
  EXPECT_EQ(c.moe_intermediate_size, 96);
  EXPECT_EQ(c.intermediate_size, 512);
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.is_moe_layer(0));
  EXPECT_TRUE(c.is_moe_layer(1));
  EXPECT_FALSE(c.is_moe_layer(3));
}

TEST(HfConfig, the_number_of_experts_has_two_names) {
  const auto* more = R"(, "moe_intermediate_size": 96, "num_local_experts": 6, "num_experts": 6)";
  EXPECT_EQ(parse("Qwen3MoeForCausalLM", more).num_experts, 6);
  const auto mixtral = parse("MixtralForCausalLM", R"(, "num_experts": 6)");
  EXPECT_EQ(mixtral.num_experts, 6);
  EXPECT_EQ(mixtral.moe_intermediate_size, 512);
}

TEST(HfConfig, null_counts_as_absent) {
  const auto c =
      parse("MistralForCausalLM", R"(, "head_dim": null, "num_key_value_heads": null, "dtype": null,
      "torch_dtype": "float32", "tie_word_embeddings": null, "quantization_config": null)");
  EXPECT_EQ(c.quantization, "");
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.num_key_value_heads, 32);
  EXPECT_EQ(c.dtype, DType::f32);
}

TEST(HfConfig, model_type_stands_in_for_an_absent_architecture) {
  auto text = config_text("LlamaForCausalLM", R"(, "model_type": "llama")");
  text.replace(text.find("architectures"), 13, "something_els");
  const auto config = parse_config(text);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
}

TEST(HfConfig, a_file_is_read_and_named) {
  const testing::TempDir dir;
  EXPECT_TRUE(read_config(dir.write("config.json", config_text("LlamaForCausalLM", ""))));
  EXPECT_THAT(read_config(dir.write("bad.json", "[]")).error().message,
              HasSubstr("bad.json: must be an object"));
  EXPECT_EQ(read_config(dir / "none.json").error().code, Code::not_found);
}

TEST(HfConfig, fewer_layers_change_only_what_is_per_layer) {
  const auto text = config_with_layers(
      R"({"num_hidden_layers": 4, "rms_norm_eps": 1e-06, "eos_token_id": [1, 2, 3, 4],
      "layer_types": ["a", "b", "c", "d"], "max_window_layers": 28, "mlp_only_layers": [0, 3], "z": {"num_hidden_layers": 4}})",
      2);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(
      *text,
      "{\n  \"num_hidden_layers\": 2,\n  \"rms_norm_eps\": 1e-06,\n"
      "  \"eos_token_id\": [\n    1,\n    2,\n    3,\n    4\n  ],\n"
      "  \"layer_types\": [\n    \"a\",\n    \"b\"\n  ],\n  \"max_window_layers\": 2,\n"
      "  \"mlp_only_layers\": [\n    0\n  ],\n  \"z\": {\n    \"num_hidden_layers\": 4\n  }\n}\n");
}

TEST(HfConfig, more_layers_repeat_what_is_per_layer) {
  const auto text = config_with_layers(
      R"({"num_hidden_layers": 2, "layer_types": ["a", "b"], "max_window_layers": 1})", 5);
  ASSERT_TRUE(text);
  std::string line = *text;
  std::erase_if(line, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(line,
            R"({"num_hidden_layers":5,"layer_types":["a","b","a","b","a"],"max_window_layers":1})");
}

TEST(HfConfig, a_number_of_layers_must_be_possible) {
  EXPECT_EQ(config_with_layers(R"({"num_hidden_layers": 2})", 0).error().code,
            Code::invalid_argument);
  EXPECT_THAT(config_with_layers("{}", 2).error().message,
              HasSubstr("num_hidden_layers is missing"));
}

}  // namespace
}  // namespace reshard
