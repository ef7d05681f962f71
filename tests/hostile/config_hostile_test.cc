// SPDX-License-Identifier: Apache-2.0
// Protects: a config.json that contradicts itself or is impossible is refused, with an error that
// says what would be right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/hf/config.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Case {
  const char* name;
  std::string text;
  const char* words;
  Code code = Code::corrupt;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// A good config with `key` set to `value`, or without it where `value` is "".
std::string with(const std::string& key, const std::string& value,
                 const std::string& architecture = "Llama") {
  std::map<std::string, std::string> fields = {
      {"architectures", "[\"" + architecture + "ForCausalLM\"]"},
      {"hidden_size", "64"},
      {"intermediate_size", "128"},
      {"num_hidden_layers", "2"},
      {"num_attention_heads", "8"},
      {"num_key_value_heads", "4"},
      {"vocab_size", "100"},
      {"num_experts", "4"},
      {"moe_intermediate_size", "32"},
      {"n_routed_experts", "4"},
      {"hybrid_override_pattern", "\"ME\""}};
  fields[key] = value;
  std::string text;
  for (const auto& [k, v] : fields)
    if (!v.empty()) text += (text.empty() ? "{" : ",") + ("\"" + k + "\":" + v);
  return text + "}";
}

std::vector<Case> type_cases() {
  return {
      {"not_json", "{]", "not JSON at byte 1"},
      {"not_utf8", "{\"a\":\"\xc0\"}", "not UTF-8 at byte 6"},
      {"a_list", "[1]", "must be an object, is a list"},
      {"key_twice", R"({"hidden_size": 1, "hidden_size": 2})", "\"hidden_size\" appears twice"},
      {"deep", std::string(1'000'000, '['), "nested deeper than 64"},
      {"heads_text", with("num_attention_heads", "\"x\""),
       "config.json: num_attention_heads must be a positive integer, is \"x\""},
      {"heads_missing", with("num_attention_heads", ""), "num_attention_heads is missing"},
      {"heads_zero", with("num_attention_heads", "0"), "must be a positive integer, is 0"},
      {"heads_negative", with("num_attention_heads", "-8"), "must be a positive integer, is -8"},
      {"hidden_fraction", with("hidden_size", "64.0"),
       "hidden_size must be a positive integer, is 64.0"},
      {"hidden_true", with("hidden_size", "true"), "is true"},
      {"hidden_null", with("hidden_size", "null"), "hidden_size is missing"},
      {"hidden_absurd", with("hidden_size", "2147483649"),
       "hidden_size must be at most 2147483648"},
      {"vocab_2_64", with("vocab_size", "18446744073709551616"),
       "vocab_size must be a positive integer"},
      {"layers_absurd", with("num_hidden_layers", "1000000"),
       "num_hidden_layers must be at most 65536"},
      {"tied_text", with("tie_word_embeddings", "\"yes\""), "must be true or false, is \"yes\""},
      {"bias_number", with("attention_bias", "1"), "attention_bias must be true or false, is 1"},
      {"dtype_unknown", with("torch_dtype", "\"auto\""), "torch_dtype must be a name such as"},
      {"dtype_number", with("dtype", "16"), "dtype must be a string, is 16"},
      {"head_dim_zero", with("head_dim", "0"), "head_dim must be a positive integer, is 0"},
      {"dense_layers_text", with("mlp_only_layers", "\"0\"", "Qwen3Moe"),
       "must be a list of integers"},
      {"dense_layers_negative", with("mlp_only_layers", "[-1]", "Qwen3Moe"), "one is -1"},
      {"sparse_step_zero", with("decoder_sparse_step", "0", "Qwen3Moe"),
       "decoder_sparse_step must be a positive"},
  };
}

std::vector<Case> meaning_cases() {
  constexpr auto kUnsupported = Code::unsupported;
  return {
      {"unknown", with("architectures", "[\"GPT2LMHeadModel\"]"),
       "\"GPT2LMHeadModel\" is not known; known are LlamaForCausalLM", kUnsupported},
      {"unknown_points_at_rules", with("architectures", "[\"X\"]"), "rules:FILE", kUnsupported},
      {"architectures_text", with("architectures", "\"LlamaForCausalLM\""),
       "must be a list of strings"},
      {"architectures_numbers", with("architectures", "[1]"), "its first entry is 1"},
      {"architectures_missing", with("architectures", ""), "architectures is missing"},
      {"architectures_empty", with("architectures", "[]"), "architectures is missing"},
      {"model_type_differs", with("model_type", "\"mistral\""),
       "no known class fits: model_type is \"mistral\", must be \"llama\" for LlamaForCausalLM",
       kUnsupported},
      {"vision_tower", with("architectures", "[\"Gemma3ForConditionalGeneration\"]"),
       "text_config alone with architectures", kUnsupported},
      {"heads_do_not_divide_hidden", with("hidden_size", "65"),
       "hidden_size must be a multiple of num_attention_heads"},
      {"kv_heads_do_not_divide", with("num_key_value_heads", "3"),
       "multiple of num_key_value_heads, is 8 with 3"},
      {"kv_heads_by_default", with("num_key_value_heads", "", "Qwen2"),
       "is 8 with 32 (absent, Qwen2ForCausalLM's default)"},
      {"more_kv_heads", with("num_key_value_heads", "16"), "is 8 with 16"},
      {"experts_missing", with("num_experts", "", "Qwen3Moe"),
       "num_experts (or num_local_experts) is missing"},
      {"experts_zero", with("num_experts", "0", "Mixtral"),
       "num_experts must be a positive integer, is 0"},
      {"experts_differ", with("num_local_experts", "8", "Mixtral"), "must be equal, are 4 and 8"},
      {"expert_size_missing", with("moe_intermediate_size", "", "Qwen3Moe"),
       "moe_intermediate_size is missing"},
      {"weights_overflow",
       R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 2147483648, "vocab_size": 2147483648,
          "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 8})",
       "more bytes than 64 bits"},
      {"heads_overflow",
       R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 2147483648, "vocab_size": 8,
          "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 8, "head_dim": 2147483648})",
       "attention heads x head_dim"},
  };
}

std::vector<Case> architecture_type_cases() {
  const auto deepseek = [](const char* key, const char* value) {
    return with(key, value, "DeepseekV3");
  };
  const auto next = [](const char* key, const char* value) {
    return with(key, value, "Qwen3Next");
  };
  return {
      {"quantization_text", with("quantization_config", "\"fp8\""),
       "quantization_config must be an object, is \"fp8\""},
      {"quant_method_number", with("quantization_config", "{\"quant_method\": 8}"),
       "quantization_config: quant_method must be a string, is 8"},
      {"q_lora_zero", deepseek("q_lora_rank", "0"), "q_lora_rank must be a positive integer"},
      {"kv_lora_text", deepseek("kv_lora_rank", "\"512\""), "kv_lora_rank must be a positive"},
      {"nope_negative", deepseek("qk_nope_head_dim", "-1"), "qk_nope_head_dim must be a positive"},
      {"rope_fraction", deepseek("qk_rope_head_dim", "1.5"), "qk_rope_head_dim must be a positive"},
      {"value_dim_list", deepseek("v_head_dim", "[]"), "v_head_dim must be a positive"},
      {"shared_negative", deepseek("n_shared_experts", "-1"),
       "n_shared_experts must be an integer from 0, is -1"},
      {"shared_absurd", deepseek("n_shared_experts", "65537"),
       "n_shared_experts must be at most 65536, is 65537"},
      {"first_dense_negative", deepseek("first_k_dense_replace", "-3"),
       "first_k_dense_replace must be an integer from 0"},
      {"mtp_absurd", deepseek("num_nextn_predict_layers", "65"),
       "num_nextn_predict_layers must be at most 64, is 65"},
      {"mtp_text", deepseek("num_nextn_predict_layers", "\"1\""), "from 0, is \"1\""},
      {"qk_norm_number", with("use_qk_norm", "1", "Glm4Moe"), "use_qk_norm must be true or false"},
      {"key_heads_zero", next("linear_num_key_heads", "0"), "linear_num_key_heads must be"},
      {"value_heads_text", next("linear_num_value_heads", "\"x\""), "linear_num_value_heads must"},
      {"key_dim_absurd", next("linear_key_head_dim", "4294967296"),
       "linear_key_head_dim must be at most"},
      {"value_dim_zero", next("linear_value_head_dim", "0"), "linear_value_head_dim must be"},
      {"kernel_negative", next("linear_conv_kernel_dim", "-4"), "linear_conv_kernel_dim must be"},
      {"shared_size_zero", next("shared_expert_intermediate_size", "0"),
       "shared_expert_intermediate_size must be a positive"},
      {"interval_zero", next("full_attention_interval", "0"), "full_attention_interval must be"},
      {"types_text", next("layer_types", "\"full_attention\""), "must be a list of strings, is"},
      {"types_numbers", next("layer_types", "[1, 2]"), "must be a list of strings, one is 1"},
  };
}

std::vector<Case> nemotron_type_cases() {
  const auto nemotron = [](const char* key, const char* value) {
    return with(key, value, "NemotronH");
  };
  return {
      {"pattern_number", nemotron("hybrid_override_pattern", "52"), "must be a string, is 52"},
      {"pattern_missing", nemotron("hybrid_override_pattern", ""),
       "hybrid_override_pattern (or layers_block_type) is missing"},
      {"pattern_empty", nemotron("hybrid_override_pattern", "\"\""), "is missing or empty"},
      {"block_text", nemotron("layers_block_type", "\"mamba\""), "must be a list of strings"},
      {"mamba_heads_zero", nemotron("mamba_num_heads", "0"), "mamba_num_heads must be a positive"},
      {"mamba_dim_text", nemotron("mamba_head_dim", "\"64\""), "mamba_head_dim must be a positive"},
      {"groups_zero", nemotron("n_groups", "0"), "n_groups must be a positive integer"},
      {"state_zero", nemotron("ssm_state_size", "0"), "ssm_state_size must be a positive integer"},
      {"conv_kernel_zero", nemotron("conv_kernel", "0"), "conv_kernel must be a positive integer"},
      {"use_bias_number", nemotron("use_bias", "0"), "use_bias must be true or false"},
      {"conv_bias_text", nemotron("use_conv_bias", "\"no\""),
       "use_conv_bias must be true or false"},
      {"latent_zero", nemotron("moe_latent_size", "0"), "moe_latent_size must be a positive"},
      {"shared_width_zero", nemotron("moe_shared_expert_intermediate_size", "0"),
       "moe_shared_expert_intermediate_size must be a positive"},
      {"mtp_pattern_list", nemotron("mtp_hybrid_override_pattern", "[]"), "must be a string"},
      {"mtp_block_text", nemotron("mtp_layers_block_type", "\"moe\""), "must be a list of strings"},
  };
}

std::vector<Case> architecture_meaning_cases() {
  constexpr auto kUnsupported = Code::unsupported;
  const std::string long_pattern = "\"" + std::string(65537, 'M') + "\"";
  return {
      {"kimi_of_another_class", with("model_type", "\"kimi_k2\"", "Glm4Moe"),
       "model_type is \"kimi_k2\", must be \"glm4_moe\" for Glm4MoeForCausalLM", kUnsupported},
      {"routed_experts_differ", with("num_local_experts", "8", "DeepseekV3"),
       "n_routed_experts and num_local_experts must be equal, are 4 and 8"},
      {"routed_experts_zero", with("n_routed_experts", "0", "DeepseekV3"),
       "n_routed_experts must be a positive integer, is 0"},
      {"routed_experts_absurd", with("n_routed_experts", "65537", "Glm4Moe"),
       "n_routed_experts must be at most 65536, is 65537"},
      {"routed_experts_missing", with("n_routed_experts", "", "NemotronH"),
       "n_routed_experts (or num_local_experts) is missing"},
      {"local_experts_missing", with("num_experts", "", "GptOss"),
       "num_local_experts (or num_experts) is missing"},
      {"layers_of_experts",
       R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
          "vocab_size": 8, "num_attention_heads": 8, "num_hidden_layers": 256,
          "moe_intermediate_size": 8, "n_routed_experts": 65536})",
       "num_experts times num_hidden_layers must be at most 16777216, is 16842752"},
      {"moe_frequency", with("moe_layer_freq", "2", "DeepseekV3"), "moe_layer_freq must be 1",
       kUnsupported},
      {"value_heads_do_not_divide", with("linear_num_value_heads", "24", "Qwen3Next"),
       "must be a multiple of linear_num_key_heads, is 24 with 16"},
      {"types_of_another_length", with("layer_types", "[\"full_attention\"]", "Qwen3Next"),
       "num_hidden_layers is 2, but layer_types has 1 entries"},
      {"types_unknown", with("layer_types", "[\"full_attention\", \"mamba\"]", "Qwen3Next"),
       "one is \"mamba\""},
      {"pattern_of_another_length", with("hybrid_override_pattern", "\"MEM\"", "NemotronH"),
       "num_hidden_layers is 2, but 3 layers are listed"},
      {"pattern_letter", with("hybrid_override_pattern", "\"MX\"", "NemotronH"), "one is \"X\""},
      {"pattern_absurd",
       R"({"architectures": ["NemotronHForCausalLM"], "hidden_size": 8, "vocab_size": 8,
          "num_attention_heads": 8, "hybrid_override_pattern": )" +
           long_pattern + "}",
       "num_hidden_layers must be at most 65536, but 65537 layers are listed"},
      {"block_unknown", with("layers_block_type", "[\"moe\", \"rnn\"]", "NemotronH"),
       "one is \"rnn\""},
      {"mamba_groups_do_not_divide", with("n_groups", "3", "NemotronH"),
       "mamba_num_heads must be a multiple of n_groups, is 128 with 3"},
      {"biases_of_experts", with("mlp_bias", "true", "NemotronH"), "mlp_bias must be false",
       kUnsupported},
      {"mtp_block_absurd",
       with("mtp_hybrid_override_pattern", "\"" + std::string(65, 'M') + "\"", "NemotronH"),
       "must have from 1 to 64 layers"},
      {"mtp_letter", with("mtp_hybrid_override_pattern", "\"?\"", "NemotronH"), "one is \"?\""},
  };
}

/// Configs of one class with sizes whose products are too large.
std::vector<Case> overflow_cases() {
  const auto of = [](const char* name, const char* keys, const char* expert = "1") {
    return R"({"architectures": [")" + std::string(name) +
           R"(ForCausalLM"], "hidden_size": 2147483648, "vocab_size": 8, "num_attention_heads": 8,
           "num_key_value_heads": 8, "head_dim": 1, "intermediate_size": 1, "num_hidden_layers": 1,
           "n_routed_experts": 8, "num_experts": 8,
           "num_nextn_predict_layers": 0)" +
           keys + ", \"moe_intermediate_size\": " + expert + "}";
  };
  return {
      {"latent_heads", of("DeepseekV3", R"(, "qk_nope_head_dim": 2147483648)"),
       "attention heads x latent head sizes x q_lora_rank"},
      {"latent_values", of("DeepseekV3", R"(, "v_head_dim": 2147483648)"),
       "attention heads x latent head sizes x kv_lora_rank"},
      {"latent_ranks", of("DeepseekV3", R"(, "kv_lora_rank": 2147483648, "qk_nope_head_dim": 1,
         "qk_rope_head_dim": 1, "v_head_dim": 1)"),
       "q_lora_rank and kv_lora_rank x hidden_size"},
      {"mamba_inner", of("NemotronH", R"(, "hybrid_override_pattern": "M",
         "mamba_head_dim": 2147483648)"),
       "mamba_num_heads x mamba_head_dim x hidden_size"},
      {"mamba_state", of("NemotronH", R"(, "hybrid_override_pattern": "M",
         "ssm_state_size": 2147483648)"),
       "n_groups x ssm_state_size x hidden_size"},
      {"linear_keys", of("Qwen3Next", R"(, "linear_key_head_dim": 2147483648)"),
       "linear_num_key_heads x linear_key_head_dim x hidden_size"},
      {"linear_values", of("Qwen3Next", R"(, "linear_value_head_dim": 2147483648)"),
       "linear_num_value_heads x linear_value_head_dim x hidden_size"},
      {"shared",
       of("DeepseekV3", R"(, "n_shared_experts": 65536,
         "qk_nope_head_dim": 1, "qk_rope_head_dim": 1, "v_head_dim": 1)",
          "1024"),
       "shared experts x hidden_size"},
      {"latent_experts", of("NemotronH", R"(, "hybrid_override_pattern": "E",
         "moe_latent_size": 2147483648, "mamba_num_heads": 8)"),
       "moe_latent_size x hidden_size"},
  };
}

class HostileConfig : public ::testing::TestWithParam<Case> {};

TEST_P(HostileConfig, is_refused_with_its_own_words) {
  const auto& c = GetParam();
  const auto config = parse_config(c.text);
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, c.code) << config.error().message;
  EXPECT_THAT(config.error().message, HasSubstr(c.words));
  EXPECT_THAT(config.error().message, StartsWith("config.json: "));
  EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Types, HostileConfig, ::testing::ValuesIn(type_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Meaning, HostileConfig, ::testing::ValuesIn(meaning_cases()), kName);

INSTANTIATE_TEST_SUITE_P(ArchitectureTypes, HostileConfig,
                         ::testing::ValuesIn(architecture_type_cases()), kName);
INSTANTIATE_TEST_SUITE_P(NemotronTypes, HostileConfig, ::testing::ValuesIn(nemotron_type_cases()),
                         kName);
INSTANTIATE_TEST_SUITE_P(ArchitectureMeaning, HostileConfig,
                         ::testing::ValuesIn(architecture_meaning_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Overflow, HostileConfig, ::testing::ValuesIn(overflow_cases()), kName);

TEST(HostileConfigFile, size_is_limited) {
  const testing::TempDir dir;
  const auto config = read_config(dir.write("config.json", std::string((16 << 20) + 1, ' ')));
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message,
              HasSubstr("config.json: 16777217 bytes, more than the 16777216"));
}

TEST(HarmlessConfig, the_base_of_these_cases_is_good) {
  for (const auto* name : {"Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "Mixtral",
                           "DeepseekV3", "Glm4Moe", "GptOss", "Qwen3Next", "Gemma3", "NemotronH"})
    EXPECT_TRUE(parse_config(with("ignored", "[{}]", name))) << name;
}

}  // namespace
}  // namespace reshard
