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

TEST(CodeForm, awq_says_its_version_or_its_format) {
  for (const char* said : {R"("version": "GEMV")", R"("format": "gemv")"}) {
    const CodeForm gemv = *read(std::string(R"("quant_method": "awq", "bits": 4, )") + said);
    EXPECT_EQ(gemv.method, CodeForm::Method::awq_gemv);
    EXPECT_EQ(gemv.name(), "awq");
    EXPECT_EQ(gemv.text, "awq gemv, 4 bits in groups of 128");
  }
}

TEST(CodeForm, gptq_lists_each_kind_of_module_once) {
  const CodeForm form = *read(R"("quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": {
      "-:.*down": {"bits": 5}, "+:a": {"bits": 8}, "b": {"group_size": -1, "sym": true},
      "c": {"bits": 8, "damp_percent": 0.1}, "d": {"desc_act": true}, "e": null})");
  EXPECT_EQ(form.others, (std::vector<CodeForm::Integers>{{8, 64}, {4, 0}}));
  EXPECT_EQ(form.text, "gptq, 4 bits in groups of 64 or 8 bits in groups of 64 or 4 bits");
  EXPECT_TRUE(read(R"("quant_method": "gptq", "bits": 3, "dynamic": {}, "pack_dtype": "int32")")
                  ->others.empty());
}

TEST(CodeForm, hqq_says_its_parameters_for_all_modules_or_by_module) {
  const char* both = R"("quant_method": "hqq", "quant_config": {"weight_quant_params": {
      "nbits": 4, "group_size": 64, "axis": 1}, "scale_quant_params": null, "offload_meta": false})";
  EXPECT_EQ(read(both)->text, "hqq, 4 bits in groups of 64");
  EXPECT_EQ(read(R"("quant_method": "hqq", "quant_config": {"self_attn.q_proj": {}})")->text,
            "hqq");
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
  EXPECT_THAT(error(R"("quant_method": "eetq")"),
              HasSubstr("c.json: quantization_config: quant_method eetq"));
  EXPECT_THAT(error(R"("quant_method": "awq", "bits": 4, "version": "gemv_fast")"),
              HasSubstr("awq, version gemv_fast is not supported"));
  EXPECT_THAT(error(R"("quant_method": "awq", "version": "gemv", "group_size": 16)"),
              HasSubstr("awq, version gemv in groups of 16 is not supported"));
  EXPECT_THAT(error(R"("quant_method": "awq", "bits": 8)"), HasSubstr("awq of 8 bits"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 5)"), HasSubstr("gptq of 5 bits"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_p")"),
              HasSubstr("checkpoint_format gptq_p"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"format": "x"}})"),
              HasSubstr(R"(gptq, dynamic: "+:.*": "format" is not supported)"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 7}})"),
              HasSubstr(R"("+:.*": 7 bits is not supported)"));
  EXPECT_THAT(error(R"("quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"group_size": 0}})"),
              HasSubstr("group_size must be a positive integer"));
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
  EXPECT_THAT(error(R"("quant_method": "awq", "format": "gemv", "version": "gemm")"),
              HasSubstr("awq, version gemm and format gemv"));
  EXPECT_THAT(
      error(R"("quant_method": "hqq", "quant_config": {"scale_quant_params": {"nbits": 8}})"),
      HasSubstr("hqq with scale_quant_params"));
  EXPECT_THAT(error(R"("quant_method": "bitsandbytes")"), HasSubstr("neither load_in_4bit nor"));
  EXPECT_THAT(code_form("{}").error().message, HasSubstr("quant_method none"));
}

}  // namespace
}  // namespace reshard
