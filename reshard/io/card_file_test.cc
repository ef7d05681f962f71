// SPDX-License-Identifier: Apache-2.0
// Protects: a model without a family gets the card of its class and model_type, or is told why not;
// every card that ships can be read, and is where its class is looked for.
#include "reshard/io/card_file.h"
#include "reshard/io/layout_side.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "reshard/io/example_configs.h"
#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/hf/architectures.h"
#include "reshard/io/make_layout.h"
#include "reshard/io/rules_file.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

constexpr const char* kCard = R"({
  "card": {"framework": "vllm", "release": "9.9", "architectures": ["NewForCausalLM"],
           "model_types": ["new"], "proof": "none"},
  "axes": [{"name": "tp", "size": 1}], "dtype": "config",
  "rules": [{"match": "a", "cuts": [{"dim": 0, "axes": ["tp"], "granule": "head_dim", "even": true}]}]})";

/// A checkpoint of the class, and a folder of cards.
class Cards : public ::testing::Test {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    fs::create_directories(files_ / "cards/vllm");
    fs::create_directories(files_ / "configs");
    files_.write("cards/vllm/NewForCausalLM.json", kCard);
    ::setenv("RESHARD_EXAMPLES", (files_ / "configs").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("RESHARD_EXAMPLES"); }

  Model model(const std::string& config, const char* dtype = "F32") {
    fs_.write("model.safetensors",
              testing::safetensors_file(
                  fmt::format(R"({{"a":{{"dtype":"{}","shape":[8],"data_offsets":[0,{}]}}}})",
                              dtype, std::string(dtype) == "F32" ? 32 : 8),
                  std::string(dtype) == "F32" ? 32 : 8));
    fs_.write("config.json", config);
    return *open_model(fs_.path());
  }

  TempDir files_, fs_;
};

TEST_F(Cards, are_found_by_class_and_model_type) {
  const Model m = model(R"({"architectures": ["NewForCausalLM"], "model_type": "new", "head_dim": 2,
                            "dtype": "bfloat16"})");
  const auto layout = make_layout("vllm:tp=2,offset=4", m);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ((*layout)->name(), "vllm:offset=4,tp=2");
  EXPECT_EQ((*layout)->local_shape(SlotId(0), Rank(5)), (Dims{4}));
  EXPECT_EQ((*layout)->slot(SlotId(0)).dtype, DType::bf16) << "the dtype of the config";
  EXPECT_THAT(make_layout("vllm:tp=8", m).error().message,
              HasSubstr("4 units of 2 of 8 cannot be cut evenly into 8"));
  EXPECT_THAT(make_layout("vllm:tq=2", m).error().message, HasSubstr("unknown key 'tq'"));
}

TEST_F(Cards, are_for_their_model_types_only) {
  const Model m = model(R"({"architectures": ["NewForCausalLM"], "model_type": "newer"})");
  EXPECT_THAT(make_layout("vllm:tp=2", m).error().message,
              HasSubstr("no card fits: NewForCausalLM is known with model_type new"));
}

TEST_F(Cards, lack_a_class) {
  const Model m = model(R"({"architectures": ["OtherForCausalLM"], "model_type": "new"})");
  EXPECT_THAT(make_layout("vllm:tp=2", m).error().message, HasSubstr("traced:vllm,tp=2"));
  EXPECT_THAT(make_layout("megatron:tp=2",
                          model(R"({"architectures": ["NewForCausalLM"], "model_type": "new"})"))
                  .error()
                  .message,
              HasSubstr("needs a config"));
}

TEST_F(Cards, change_no_values_that_are_not_read) {
  const Model m = model(R"({"architectures": ["NewForCausalLM"], "model_type": "new", "head_dim": 2,
                            "quantization_config": {"quant_method": "new"}})",
                        "U8");
  EXPECT_THAT(make_layout("vllm:tp=2", m).error().message,
              HasSubstr("the dtype of its parameters would change values"));
}

TEST_F(Cards, of_known_classes_must_be_installed) {
  const auto of = read_card_of("vllm", "LlamaForCausalLM");
  EXPECT_EQ(of.error().code, Code::not_found);
  EXPECT_THAT(of.error().message,
              HasSubstr("there is no card of vllm for LlamaForCausalLM; cards"));
}

TEST_F(Cards, given_for_a_known_class_read_its_config_file) {
  const auto config = fs_.write("config.json", R"({"architectures": ["LlamaForCausalLM"],
      "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
      "num_attention_heads": 2, "vocab_size": 32, "dtype": "bfloat16", "only_here": 7})");
  const auto card = read_card(files_.write("card.json", R"({
      "card": {"framework": "megatron", "release": "9.9", "architectures": ["LlamaForCausalLM"],
               "model_types": ["llama"], "proof": "none"},
      "axes": [], "require": [{"that": "(only_here ?? 1) == 1", "says": "it is {only_here}"}],
      "rules": [{"match": "*"}]})"));
  ASSERT_TRUE(card) << card.error().message;
  const auto model = open_model(config);
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_TRUE(model->config);
  const auto layout = layout_by_rules_of(*read_layout_text("rules:card.json"), *model, *card);
  ASSERT_FALSE(layout);
  EXPECT_THAT(layout.error().message, HasSubstr("it is 7"));
}

TEST_F(Cards, are_checked_when_they_are_read) {
  files_.write("cards/vllm/NewForCausalLM.json", "{}");
  const std::string config = R"({"architectures": ["NewForCausalLM"], "model_type": "new"})";
  EXPECT_THAT(make_layout("vllm:tp=2", model(config)).error().message,
              HasSubstr("NewForCausalLM.json: rules is missing"));
  files_.write("cards/vllm/NewForCausalLM.json", R"({"rules": [{"match": "*"}]})");
  EXPECT_THAT(make_layout("vllm:tp=2", model(config)).error().message,
              HasSubstr("is no card of vllm"));
}

TEST(ShippedCards, of_all_known_classes_are_for_their_model_types) {
  for (const char* framework : {"vllm", "sglang"})
    for (const hf::Architecture& of : hf::architectures()) {
      const auto card = read_card_of(framework, std::string(of.name));
      ASSERT_TRUE(card) << card.error().message;
      for (const std::string_view type : of.model_types)
        EXPECT_TRUE(type.empty() || std::ranges::find(card->card->model_types, type) !=
                                        card->card->model_types.end())
            << of.name << " " << type;
    }
}

TEST(ShippedCards, can_be_read) {
  for (const std::string& name : card_names("vllm")) {
    SCOPED_TRACE(name);
    const auto card = read_card(*find_card_file("vllm", name));
    ASSERT_TRUE(card) << card.error().message;
    ASSERT_TRUE(card->card);
    EXPECT_EQ(card->card->framework, "vllm");
    EXPECT_THAT(card->card->architectures, ::testing::Contains(name));
    EXPECT_FALSE(card->card->model_types.empty());
    EXPECT_THAT(card->card->proof, ::testing::AnyOf(HasSubstr("unseen"), HasSubstr("tests/vllm")))
        << "a card that has not predicted is none, unless the framework's classes are its test";
  }
}

}  // namespace
}  // namespace reshard
