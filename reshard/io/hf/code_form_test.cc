// SPDX-License-Identifier: Apache-2.0
// Protects: forms that are read only are told apart by what their config says, and everything that
// would change the meaning of codes is refused by name.
#include "reshard/io/hf/code_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard {
namespace {

using testing::HasSubstr;

Result<CodeForm> read(const std::string& members) {
  return code_form(R"({"quantization_config": {)" + members + "}}", "c.json");
}
std::string error(const std::string& members) { return read(members).error().message; }

TEST(CodeForm, awq_and_gptq_say_bits_and_groups) {
  EXPECT_EQ(read(R"("quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm")")->text,
            "awq, 4 bits in groups of 128");
  EXPECT_EQ(read(R"("quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM")")
                ->group_cols,
            64);
  const CodeForm gptq = *read(R"("quant_method": "gptq", "bits": 8, "group_size": -1)");
  EXPECT_EQ(gptq.text, "gptq, 8 bits");
  EXPECT_EQ(gptq.group_cols, 0);
  EXPECT_TRUE(gptq.zeros_less_1);
  EXPECT_FALSE(
      read(R"("quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2")")->zeros_less_1);
}

TEST(CodeForm, compressed_tensors_and_bitsandbytes_leave_the_rest_to_their_files) {
  const CodeForm packed = *read(
      R"("quant_method": "compressed-tensors", "format": "pack-quantized",
         "config_groups": {"a": {"weights": {"num_bits": 4, "symmetric": false}}})");
  EXPECT_EQ(packed.text, "compressed-tensors, pack-quantized of 4 bits");
  EXPECT_EQ(packed.bits, 4);
  EXPECT_EQ(read(R"("quant_method": "bitsandbytes", "load_in_4bit": true)")->text,
            "bitsandbytes, 4 bits");
}

TEST(CodeForm, torchao_leaves_all_to_the_metadata_of_its_files) {
  EXPECT_EQ(
      read(
          R"("quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}})")
          ->text,
      "torchao, Int8WeightOnlyConfig");
  EXPECT_EQ(read(R"("quant_method": "torchao", "quant_type": "int4_weight_only")")->text,
            "torchao");
}

TEST(CodeForm, others_are_refused_by_name) {
  EXPECT_THAT(error(R"("quant_method": "hqq")"),
              HasSubstr("c.json: quantization_config: quant_method hqq"));
  EXPECT_THAT(error(R"("quant_method": "awq", "bits": 4, "version": "gemv")"),
              HasSubstr("awq, version gemv is not supported"));
  EXPECT_THAT(error(R"("quant_method": "awq", "bits": 8)"), HasSubstr("awq of 8 bits"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 3)"), HasSubstr("gptq of 3 bits"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}})"),
              HasSubstr("gptq with 'dynamic'"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin")"),
              HasSubstr("checkpoint_format marlin"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "group_size": 0)"),
              HasSubstr("group_size must be a positive integer"));
  EXPECT_THAT(error(R"("quant_method": "gptq")"), HasSubstr("bits is missing"));
  EXPECT_THAT(error(R"("quant_method": "compressed-tensors", "format": "pack-quantized",
                       "config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}})"),
              HasSubstr("int of 8 bits is not supported"));
  EXPECT_THAT(error(R"("quant_method": "compressed-tensors", "format": "pack-quantized",
                       "transform_config": {"config_groups": {"a": {}}},
                       "config_groups": {"a": {"weights": {"num_bits": 4}}})"),
              HasSubstr("transform_config is not supported"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "format": "marlin")"),
              HasSubstr("checkpoint_format marlin"));
  EXPECT_THAT(error(R"("quant_method": "awq", "format": "gemv")"), HasSubstr("format gemv"));
  EXPECT_THAT(error(R"("quant_method": "bitsandbytes")"), HasSubstr("neither load_in_4bit nor"));
  EXPECT_THAT(code_form("{}").error().message, HasSubstr("quant_method none"));
}

}  // namespace
}  // namespace reshard
