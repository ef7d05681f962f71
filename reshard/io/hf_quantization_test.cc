// SPDX-License-Identifier: Apache-2.0
// Protects: what a quantization_config says of weights, and that what is written is read again.
#include "reshard/io/hf_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard {
namespace {

using ::testing::HasSubstr;

const QuantFormat kBlock = *quant_format_from_name("fp8_block");

Result<QuantFormat> read(const std::string& members) {
  return stored_weights(R"({"a": 1, "quantization_config": {)" + members + "}}", "c.json")
      .transform([](const StoredWeights& w) { return w.format; });
}

TEST(HfQuantization, fp8_is_read_with_blocks_and_without) {
  EXPECT_EQ(*read(R"("quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128])"),
            kBlock);
  EXPECT_EQ(
      *read(R"("quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0")"),
      *quant_format_from_name("fp8_block_pow2"));
  EXPECT_EQ(*read(R"("quant_method": "fp8")"), *quant_format_from_name("fp8_tensor"));
}

TEST(HfQuantization, others_are_refused_by_name) {
  const auto error = [](const std::string& members) { return read(members).error().message; };
  EXPECT_THAT(error(R"("quant_method": "awq")"),
              HasSubstr("c.json: quantization_config: quant_method awq is not read"));
  EXPECT_THAT(error(R"("quant_method": "fp8", "fmt": "e5m2")"), HasSubstr("fmt e5m2 is not read"));
  EXPECT_THAT(error(R"("quant_method": "fp8", "weight_block_size": [128])"),
              HasSubstr("must be two positive numbers"));
  EXPECT_THAT(error(R"("quant_method": "fp8", "weight_block_size": [0, 128])"),
              HasSubstr("must be two positive numbers"));
  EXPECT_THAT(stored_weights("{}").error().message, HasSubstr("none is not read"));
}

TEST(HfQuantization, modelopt_is_read_wherever_it_stands) {
  const std::string algo = R"("quant_algo": "NVFP4", "group_size": 16)";
  const QuantFormat nvfp4 = *quant_format_from_name("nvfp4");
  EXPECT_EQ(*read(R"("quant_method": "modelopt", )" + algo), nvfp4);
  EXPECT_EQ(*read(R"("quant_method": "modelopt", "quantization": {)" + algo + "}"), nvfp4);
  EXPECT_EQ(stored_weights_beside(R"({"quantization": {)" + algo + "}}", "h.json")->format, nvfp4);
  EXPECT_THAT(stored_weights_beside("{}", "h.json").error().message, HasSubstr("h.json: has no"));
  const auto error = [](const std::string& members) { return read(members).error().message; };
  EXPECT_THAT(error(R"("quant_method": "modelopt")"), HasSubstr("quant_algo unknown is not read"));
  EXPECT_THAT(error(R"("quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32)"),
              HasSubstr("NVFP4 in groups of 32 is not read"));
}

TEST(HfQuantization, what_is_written_is_read_again) {
  const std::vector<std::pair<QuantMethod, const char*>> kWritten = {
      {QuantMethod::fp8, "fp8_block"},       {QuantMethod::fp8, "fp8_block_pow2"},
      {QuantMethod::fp8, "fp8_tensor"},      {QuantMethod::mxfp4, "mxfp4"},
      {QuantMethod::modelopt, "fp8_tensor"}, {QuantMethod::modelopt, "fp8_channel"},
      {QuantMethod::modelopt, "fp8_block"},  {QuantMethod::modelopt, "mxfp8"},
      {QuantMethod::modelopt, "nvfp4"},
  };
  for (const auto& [method, name] : kWritten) {
    const QuantFormat format = *quant_format_from_name(name);
    const auto text = config_of_quantised_weights(
        R"({"a": 1, "quantization_config": {"quant_method": "awq"}, "b": 2})", {method, format},
        {"lm_head"});
    ASSERT_TRUE(text.has_value()) << text.error().message;
    EXPECT_EQ(stored_weights(*text)->format, format) << *text;
    EXPECT_EQ(stored_weights(*text)->method, method) << *text;
    EXPECT_THAT(*text, HasSubstr("\"lm_head\""));
  }
  EXPECT_THAT(
      config_of_quantised_weights("{}", {QuantMethod::fp8, *quant_format_from_name("mxfp8")}, {})
          .error()
          .message,
      HasSubstr("mxfp8 of fp8 is not read"));
}

}  // namespace
}  // namespace reshard
