// SPDX-License-Identifier: Apache-2.0
// Protects: scales of adapters are those that PEFT computes; what would change weights in another
// way than by A and B is refused by its name.
#include "reshard/io/identify/adapters/peft.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reshard::identify {
namespace {

Result<PeftConfig> parsed(const std::string& more) {
  return parse_peft_config(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6)" + more + "}",
                           "c.json");
}

TEST(PeftConfig, says_scales) {
  EXPECT_EQ(parsed("")->scale("model.layers.0.q_proj", 4), 1.5);
  EXPECT_EQ(parsed(R"(, "use_rslora": true)")->scale("q_proj", 4), 3);
  EXPECT_EQ(parsed(R"(, "lora_alpha_pattern": null, "use_dora": false, "target_parameters": [],
                       "init_lora_weights": "gaussian")")
                ->scale("q_proj", 3),
            2);
}

TEST(PeftConfig, has_patterns_for_the_ends_of_names) {
  const auto config = parsed(R"(, "alpha_pattern": {"q_proj": 8, "layers\\.1.mlp": 16, "^head": 32,
                                   "layers.2.q.proj": 64})");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->scale("q_proj", 8), 1);
  EXPECT_EQ(config->scale("model.layers.0.q_proj", 8), 1);
  EXPECT_EQ(config->scale("model.layers.0.seq_proj", 8), 0.75);
  EXPECT_EQ(config->scale("model.layers.1.mlp", 8), 2);
  EXPECT_EQ(config->scale("model.layers.1xmlp", 8), 2);  // "." is any character
  EXPECT_EQ(config->scale("model.layersx1.mlp", 8), 0.75);
  EXPECT_EQ(config->scale("model.layers.11.mlp", 8), 0.75);
  EXPECT_EQ(config->scale("head", 8), 4);
  EXPECT_EQ(config->scale("model.head", 8), 0.75);
  EXPECT_EQ(config->scale("layers.2.q_proj", 8), 1);  // the first that matches
}

TEST(PeftConfig, refuses_other_forms_by_name) {
  const auto message = [](const std::string& more) {
    const auto config = parsed(more);
    return config ? "" : config.error().message;
  };
  for (const char* name : {"use_dora", "lora_bias", "use_qalora"})
    EXPECT_NE(message(std::string(", \"") + name + "\": true").find(name), std::string::npos);
  EXPECT_NE(message(R"(, "target_parameters": ["experts.gate_up_proj"])").find("target_parameters"),
            std::string::npos);
  EXPECT_NE(message(R"(, "init_lora_weights": "pissa_niter_16")").find("pissa_niter_16"),
            std::string::npos);
  EXPECT_NE(message(R"(, "alpha_pattern": {".*q_proj": 2})").find("'.*q_proj'"), std::string::npos);
  EXPECT_EQ(parse_peft_config(R"({"peft_type": "IA3", "lora_alpha": 1})", "c").error().code,
            Code::unsupported);
  EXPECT_EQ(parse_peft_config(R"({"peft_type": "LORA"})", "c.json").error().message,
            "c.json: lora_alpha is missing");
  EXPECT_EQ(parse_peft_config(R"({"lora_alpha": "6"})", "c").error().code, Code::corrupt);
  EXPECT_EQ(parse_peft_config("[]", "c").error().code, Code::corrupt);
}

}  // namespace
}  // namespace reshard::identify
