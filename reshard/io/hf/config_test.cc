// SPDX-License-Identifier: Apache-2.0
// Protects: a config.json means here what it means to transformers, absent keys included.
#include "reshard/io/hf/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/files/json.h"
#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/model/canonical.h"

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

TEST(HfConfig, what_python_writes_for_numbers_without_a_value_does_not_matter_and_stays) {
  for (const char* value :
       {"[0.0, Infinity]", "-Infinity", "NaN", R"({"__float__": "Infinity"})"}) {
    const std::string text =
        config_text("LlamaForCausalLM", std::string(R"(, "time_step_limit": )") + value);
    EXPECT_TRUE(parse_config(text)) << value;
    const auto changed = config_with_layers(text, 2);
    ASSERT_TRUE(changed) << changed.error().message;
    const Json kept = *parse_json(*changed, {.non_finite = true})->find("time_step_limit");
    EXPECT_EQ(kept.dump(), value);
  }
  const auto wrong = parse_config(config_text("LlamaForCausalLM", R"(, "head_dim": Infinity)"));
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "config.json: head_dim must be a positive integer, is Infinity");
}

TEST(HfConfig, the_name_that_fully_shard_gives_to_a_class_is_its_own) {
  EXPECT_EQ(parse("FSDPQwen3ForCausalLM", R"(, "model_type": "qwen3")").architecture,
            "Qwen3ForCausalLM");
  EXPECT_THAT(parse_config(config_text("FSDPFSDPForCausalLM", "")).error().message,
              HasSubstr("architecture \"FSDPFSDPForCausalLM\" is not known"));
}

TEST(HfConfig, a_class_under_the_type_of_another_is_not_known) {
  const auto config =
      parse_config(config_text("LlamaForCausalLM", R"(, "model_type": "internlm3")"));
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Code::unsupported);
  EXPECT_EQ(config.error().message,
            "config.json: no known class fits: model_type is \"internlm3\", must be \"llama\" for "
            "LlamaForCausalLM");
}

TEST(HfConfig, a_decoder_alone_has_no_head_and_no_prefix) {
  const auto c = parse("Qwen3Model", R"(, "num_key_value_heads": 4, "model_type": "qwen3")");
  EXPECT_TRUE(c.is_bare);
  EXPECT_FALSE(c.has_head || c.tie_word_embeddings);
  const auto tensors = canonical_tensors(c);
  ASSERT_TRUE(tensors);
  EXPECT_TRUE(tensors->find("embed_tokens.weight") && tensors->find("norm.weight"));
  EXPECT_FALSE(tensors->find("lm_head.weight"));
  EXPECT_EQ(parse("Gemma3TextModel").architecture, "Gemma3TextModel");
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
