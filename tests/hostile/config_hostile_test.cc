// SPDX-License-Identifier: Apache-2.0
// Protects: a config.json that contradicts itself, or asks for the impossible, is refused with what
// would be right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "reshard/io/hf_config.h"
#include "reshard/io/temp_dir_testutil.h"

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
      {"moe_intermediate_size", "32"}};
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
      {"key_twice", R"({"hidden_size": 1, "hidden_size": 2})", "\"hidden_size\" stands twice"},
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
       "model_type is \"mistral\", must be \"llama\""},
      {"quantised", with("quantization_config", "{}"), "quantization_config", kUnsupported},
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

TEST(HostileConfigFile, size_is_limited) {
  const testing::TempDir dir;
  const auto config = read_config(dir.write("config.json", std::string((16 << 20) + 1, ' ')));
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message,
              HasSubstr("config.json: 16777217 bytes, more than the 16777216"));
}

TEST(HarmlessConfig, the_base_of_these_cases_is_good) {
  for (const auto* name : {"Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "Mixtral"})
    EXPECT_TRUE(parse_config(with("ignored", "[{}]", name))) << name;
}

}  // namespace
}  // namespace reshard
