// SPDX-License-Identifier: Apache-2.0
// Protects: what a quantization_config says of weights, and that what is written is read again.
#include "reshard/io/hf/quantization.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"

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
              HasSubstr("c.json: quantization_config: quant_method awq is not supported"));
  EXPECT_THAT(error(R"("quant_method": "fp8", "fmt": "e5m2")"),
              HasSubstr("fmt e5m2 is not supported"));
  EXPECT_THAT(error(R"("quant_method": "fp8", "weight_block_size": [128])"),
              HasSubstr("must be two positive numbers"));
  EXPECT_THAT(error(R"("quant_method": "fp8", "weight_block_size": [0, 128])"),
              HasSubstr("must be two positive numbers"));
  EXPECT_THAT(stored_weights("{}").error().message, HasSubstr("none is not supported"));
}

TEST(HfQuantization, what_a_config_says_is_found_in_every_part_of_it) {
  const auto said = [](const std::string& text) {
    const SaidQuantisation found = *said_quantisation(text);
    return found.method + (found.caches ? " with caches" : "");
  };
  EXPECT_EQ(said(R"({"hidden_size": 4})"), "");
  EXPECT_EQ(said(R"({"quantization_config": null})"), "");
  EXPECT_EQ(said(R"({"quantization_config": {"bits": 4}})"), "unknown");
  EXPECT_EQ(said(R"({"text_config": {"quantization_config": {"quant_method": "awq"}}})"), "awq");
  EXPECT_EQ(said(R"({"compression_config": {"quant_method": "compressed-tensors"}})"),
            "compressed-tensors");
  EXPECT_EQ(said(R"({"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {}}})"),
            "fp8 with caches");
  EXPECT_EQ(said(R"({"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": null}})"),
            "fp8");
  const auto beside = said_quantisation_beside(
      R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})", "h.json");
  EXPECT_EQ(beside->method, "modelopt");
  EXPECT_TRUE(beside->caches);
}

TEST(HfQuantization, a_config_of_plain_weights_says_nothing_of_it_anywhere) {
  const char* const text =
      R"({"a": 1, "compression_config": {}, "text_config": {"quantization_config": {}, "b": 2}})";
  const auto plain = parse_json(*config_of_plain_weights(text));
  EXPECT_EQ(plain->dump(), parse_json(R"({"a": 1, "text_config": {"b": 2}})")->dump());
}

TEST(HfQuantization, the_dtype_of_a_config_is_that_of_its_files) {
  const auto of = [](const char* text, DType dtype) { return *config_of_dtype(text, dtype); };
  const char* const old = R"({"torch_dtype": "bfloat16", "rms_norm_eps": 1e-06})";
  EXPECT_EQ(of(old, DType::bf16).text, old);
  EXPECT_EQ(of(old, DType::bf16).said, "");
  const ConfigOfDtype changed = of(old, DType::f32);
  EXPECT_EQ(changed.said, "bfloat16");
  EXPECT_EQ(changed.dtype, "float32");
  EXPECT_EQ(parse_json(changed.text)->dump(),
            parse_json(R"({"torch_dtype": "float32", "rms_norm_eps": 1e-06})")->dump());
  EXPECT_THAT(of(R"({"dtype": "torch.float32"})", DType::f16).text, HasSubstr("\"float16\""));
  // Neither a config without the key nor one that says "auto" claims anything.
  for (const char* text : {R"({"a": 1})", R"({"dtype": "auto"})"})
    EXPECT_EQ(of(text, DType::f32).text, text);
}

TEST(HfQuantization, modelopt_is_read_wherever_it_stands) {
  const std::string algo = R"("quant_algo": "NVFP4", "group_size": 16)";
  const QuantFormat nvfp4 = *quant_format_from_name("nvfp4");
  EXPECT_EQ(*read(R"("quant_method": "modelopt", )" + algo), nvfp4);
  EXPECT_EQ(*read(R"("quant_method": "modelopt", "quantization": {)" + algo + "}"), nvfp4);
  EXPECT_EQ(stored_weights_beside(R"({"quantization": {)" + algo + "}}", "h.json")->format, nvfp4);
  EXPECT_THAT(stored_weights_beside("{}", "h.json").error().message, HasSubstr("h.json: has no"));
  const auto error = [](const std::string& members) { return read(members).error().message; };
  EXPECT_THAT(error(R"("quant_method": "modelopt")"),
              HasSubstr("quant_algo unknown is not supported"));
  EXPECT_THAT(error(R"("quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32)"),
              HasSubstr("NVFP4 in groups of 32 is not supported"));
}

Result<StoredWeights> read_all(const std::string& members) {
  return stored_weights(R"({"quantization_config": {)" + members + "}}", "c.json");
}

TEST(HfQuantization, mixed_precision_of_modelopt_says_the_format_of_each_module) {
  const std::string mixed = R"("quant_method": "modelopt", "quant_algo": "MIXED_PRECISION")";
  const auto read_layers = [&](const std::string& layers) {
    return read_all(mixed + R"(, "quantized_layers": {)" + layers + "}");
  };
  const auto weights = read_layers(
      R"("a.q": {"quant_algo": "FP8"}, "a.k": {"quant_algo": "FP8"},
         "b.up": {"quant_algo": "NVFP4", "group_size": 16})");
  const QuantFormat fp8 = *quant_format_from_name("fp8_tensor"),
                    nvfp4 = *quant_format_from_name("nvfp4");
  EXPECT_EQ(weights->formats().all, (std::vector{fp8, nvfp4}));
  EXPECT_EQ(weights->of_module,
            (std::map<std::string, QuantFormat>{{"a.q", fp8}, {"a.k", fp8}, {"b.up", nvfp4}}));
  const auto error = [&](const std::string& layers) { return read_layers(layers).error().message; };
  EXPECT_THAT(error(""), HasSubstr("MIXED_PRECISION without quantized_layers is not supported"));
  EXPECT_THAT(error(R"("a": {"quant_algo": "W4A8_AWQ"})"), HasSubstr("quant_algo W4A8_AWQ"));
  EXPECT_THAT(error(R"("a": {"quant_algo": "MIXED_PRECISION"})"), HasSubstr("MIXED_PRECISION"));
  EXPECT_THAT(error(R"("a": 3)"), HasSubstr("c.json"));
}

std::string compressed(const std::string& format, const std::string& weights,
                       const std::string& more = "") {
  return R"("quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "config_groups": {"a": {"weights": {)" + weights + "}}" + more + "}";
}

TEST(HfQuantization, groups_of_compressed_tensors_say_how_weights_are_cut) {
  const std::string k8 = R"("num_bits": 8, "type": "float")",
                    k4 = R"("num_bits": 4, "type": "float")";
  const auto of = [](const std::string& members) { return to_string(*read(members)); };
  EXPECT_EQ(of(compressed("float-quantized", k8)), "fp8_tensor");
  EXPECT_EQ(of(compressed("naive-quantized", k8 + R"(, "strategy": "channel")")), "fp8_channel");
  EXPECT_EQ(of(compressed("float-quantized",
                          k8 + R"(, "strategy": "block", "block_structure": [64, 32])")),
            "F8_E4M3 64x32 F32 exact");
  EXPECT_EQ(of(compressed("mxfp8-quantized", k8 + R"(, "group_size": 32)")), "mxfp8");
  EXPECT_EQ(of(compressed("mxfp4-pack-quantized", k4 + R"(, "group_size": 32)")), "mxfp4");
  const std::string nvfp4 = k4 + R"(, "group_size": 16, "strategy": "tensor_group")";
  EXPECT_EQ(of(compressed("nvfp4-pack-quantized", nvfp4)), "nvfp4_divisor");
  const auto error = [](const std::string& members) { return read(members).error().message; };
  const std::string i4 = R"("num_bits": 4, "type": "int")", i8 = R"("num_bits": 8, "type": "int")";
  const std::string by32 = R"(, "group_size": 32, "strategy": "group")";
  const std::string channel = R"(, "strategy": "channel")";
  EXPECT_EQ(of(compressed("pack-quantized", i4 + by32)), "int4_group32");
  EXPECT_EQ(of(compressed("pack-quantized", i4 + channel)), "int4_channel");
  EXPECT_EQ(of(compressed("pack-quantized", i8 + channel)), "int8_packed_channel");
  EXPECT_EQ(of(compressed("int-quantized", i8 + channel)), "int8_channel");
  EXPECT_THAT(error(compressed("pack-quantized", i4)),
              HasSubstr("int of 4 bits as pack-quantized with strategy tensor is not supported"));
  EXPECT_THAT(
      error(compressed("pack-quantized", i4 + R"(, "group_size": 15, "strategy": "group")")),
      HasSubstr("in groups of 15 is not supported"));
  EXPECT_THAT(error(compressed("int-quantized", i4 + channel)),
              HasSubstr("int of 4 bits as int-quantized is not supported"));
  EXPECT_THAT(error(compressed("pack-quantized", i4 + by32 + R"(, "actorder": "group")")),
              HasSubstr("groups are in another order"));
  EXPECT_THAT(error(compressed("pack-quantized", i4 + by32 + R"(, "symmetric": false)")),
              HasSubstr("not symmetric"));
  EXPECT_THAT(error(compressed("nvfp4-pack-quantized", k4 + R"(, "group_size": 32)")),
              HasSubstr("in groups of 32 is not supported"));
  EXPECT_THAT(error(compressed("float-quantized", R"("type": "float")")),
              HasSubstr("num_bits is missing"));
  EXPECT_THAT(error(compressed("float-quantized", k8 + R"(, "strategy": "block")")),
              HasSubstr("block_structure must be two positive numbers"));
  EXPECT_THAT(error(compressed("float-quantized", k8, R"(, "b": ["Linear"])")),
              HasSubstr("group b without weights"));
  EXPECT_THAT(error(R"("quant_method": "compressed-tensors", "config_groups": {})"),
              HasSubstr("is empty"));
}

TEST(HfQuantization, groups_of_compressed_tensors_may_have_several_formats) {
  const std::string fp8 = R"({"weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                              "format": "float-quantized"})";
  const std::string int4 = R"({"weights": {"num_bits": 4, "type": "int", "group_size": 32},
                               "format": "pack-quantized"})";
  const auto weights = read_all(
      R"("quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {)"
      R"("a": )" +
      fp8 + R"(, "b": )" + int4 + R"(, "c": )" + fp8 + "}");
  std::string many = R"("quant_method": "compressed-tensors", "config_groups": {)";
  for (int i = 1; i <= 65; ++i)
    many += fmt::format(R"({}"{}": {{"format": "float-quantized", "weights": {{"num_bits": 8,
                        "type": "float", "group_size": {}}}}})",
                        i == 1 ? "" : ", ", i, i);
  EXPECT_THAT(read_all(many + "}").error().message, HasSubstr("of more than 64 formats"));
  EXPECT_EQ(weights->formats().all, (std::vector{*quant_format_from_name("fp8_channel"),
                                                 *quant_format_from_name("int4_group32")}));
}

std::string written(QuantMethod method, const char* format, bool static_inputs) {
  return *config_of_quantised_weights("{}",
                                      {method, *quant_format_from_name(format), static_inputs}, {});
}

// vLLM refuses experts of one scale for each weight with inputs scaled by token.
TEST(HfQuantization, inputs_are_scaled_as_vllm_takes_them_beside_the_weights) {
  const auto strategy_of_inputs = [](const char* format) {
    const std::string text = written(QuantMethod::compressed_tensors, format, false);
    const auto at = text.find("strategy", text.find("input_activations"));
    return text.substr(at + 12, text.find('"', at + 12) - at - 12);
  };
  EXPECT_EQ(strategy_of_inputs("fp8_tensor"), "tensor");
  EXPECT_EQ(strategy_of_inputs("fp8_channel"), "token");
  EXPECT_EQ(strategy_of_inputs("fp8_block"), "group");
  EXPECT_EQ(strategy_of_inputs("mxfp8"), "group");
  for (const char* format : {"mxfp4", "nvfp4_divisor"})
    EXPECT_THAT(written(QuantMethod::compressed_tensors, format, false),
                HasSubstr("\"input_activations\": null"));
  const std::string still = written(QuantMethod::compressed_tensors, "fp8_tensor", true);
  EXPECT_EQ(still.find("\"dynamic\": true"), std::string::npos);
  EXPECT_THAT(written(QuantMethod::fp8, "fp8_tensor", true), HasSubstr("\"static\""));
  EXPECT_THAT(written(QuantMethod::fp8, "fp8_tensor", false), HasSubstr("\"dynamic\""));
  EXPECT_THAT(written(QuantMethod::modelopt, "nvfp4", true), HasSubstr("\"NVFP4\""));
  EXPECT_THAT(written(QuantMethod::modelopt, "nvfp4", false), HasSubstr("\"W4A16_NVFP4\""));
}

TEST(HfQuantization, what_is_written_is_read_again) {
  const std::vector<std::pair<QuantMethod, const char*>> kWritten = {
      {QuantMethod::fp8, "fp8_block"},
      {QuantMethod::fp8, "fp8_block_pow2"},
      {QuantMethod::fp8, "fp8_tensor"},
      {QuantMethod::mxfp4, "mxfp4"},
      {QuantMethod::modelopt, "fp8_tensor"},
      {QuantMethod::modelopt, "fp8_channel"},
      {QuantMethod::modelopt, "fp8_block"},
      {QuantMethod::modelopt, "mxfp8"},
      {QuantMethod::modelopt, "nvfp4"},
      {QuantMethod::compressed_tensors, "fp8_tensor"},
      {QuantMethod::compressed_tensors, "fp8_channel"},
      {QuantMethod::compressed_tensors, "fp8_group"},
      {QuantMethod::compressed_tensors, "fp8_block"},
      {QuantMethod::compressed_tensors, "mxfp8"},
      {QuantMethod::compressed_tensors, "mxfp4"},
      {QuantMethod::compressed_tensors, "nvfp4_divisor"},
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
      HasSubstr("mxfp8 of fp8 is not supported"));
}

}  // namespace
}  // namespace reshard
