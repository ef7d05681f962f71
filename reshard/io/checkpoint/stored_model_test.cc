// SPDX-License-Identifier: Apache-2.0
// Protects: which format a stored tensor has where a checkpoint mixes several.
#include "reshard/io/checkpoint/stored_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard {
namespace {

using ::testing::HasSubstr;

QuantFormat named(const char* name) { return *quant_format_from_name(name); }

QuantFormat fp8_blocks(std::int32_t rows, std::int32_t cols) {
  QuantFormat f = named("fp8_block");
  f.block_rows = rows;
  f.block_cols = cols;
  return f;
}

/// "a.weight" in MXFP4 and "b.weight" in FP8 blocks of 128 x 128, as DeepSeek-V4 stores them.
ModelSpec deepseek() {
  ModelSpec stored;
  EXPECT_TRUE(stored.add("a.weight", {64, 80}, DType::i8));
  EXPECT_TRUE(stored.add("a.scale", {64, 5}, DType::f8_e8m0));
  EXPECT_TRUE(stored.add("b.weight", {256, 160}, DType::f8_e4m3));
  EXPECT_TRUE(stored.add("b.scale", {2, 2}, DType::f8_e8m0));
  EXPECT_TRUE(stored.add("c.scale", {3}, DType::f32));
  return stored;
}

TEST(StoredModel, ATensorHasTheFormatThatItAndItsScalesFit) {
  const ModelSpec stored = deepseek();
  EXPECT_TRUE(has_deepseek_scales(stored));
  ModelSpec norm;
  ASSERT_TRUE(norm.add("n.weight", {3}, DType::bf16));
  ASSERT_TRUE(norm.add("n.scale", {3}, DType::bf16));
  EXPECT_FALSE(has_deepseek_scales(norm));
  const StoredFormats formats{{named("fp8_block_pow2"), named("mxfp4")}, {}};
  const auto plain = plain_tensors(stored, formats, QuantMethod::deepseek_v4, DType::bf16);
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->tensors.size(), 3);
  EXPECT_EQ(plain->tensors[*plain->tensors.find("a.weight")].shape, (Dims{64, 160}));
  EXPECT_EQ(plain->stored.format_of("a.weight"), named("mxfp4"));
  EXPECT_EQ(plain->stored.format_of("b.weight"), named("fp8_block_pow2"));
  EXPECT_EQ(plain->stored.others.size(), 1U);
  EXPECT_THAT(to_string(plain->stored), HasSubstr(" and "));
}

TEST(StoredModel, OneFormatLeavesNoOthers) {
  ModelSpec stored;
  ASSERT_TRUE(stored.add("a.weight", {4, 8}, DType::f8_e4m3));
  ASSERT_TRUE(stored.add("a.weight_scale", {4, 1}, DType::f32));
  const StoredFormats formats{{named("fp8_tensor"), named("fp8_channel")}, {}};
  const auto plain = plain_tensors(stored, formats, QuantMethod::compressed_tensors, DType::bf16);
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->stored.format, named("fp8_channel"));
  EXPECT_TRUE(plain->stored.others.empty());
}

TEST(StoredModel, ScalesThatFitBlocksOfTwoSizesAreRefusedUnlessItIsSaidWhich) {
  ModelSpec stored;
  ASSERT_TRUE(stored.add("a.weight", {64, 160}, DType::f8_e4m3));
  ASSERT_TRUE(stored.add("a.weight_scale", {1, 2}, DType::f32));
  StoredFormats formats{{fp8_blocks(128, 128), fp8_blocks(64, 96)}, {}};
  const auto read = [&] {
    return plain_tensors(stored, formats, QuantMethod::compressed_tensors, DType::bf16);
  };
  EXPECT_THAT(read().error().message, HasSubstr("its scales fit both"));
  formats.of_module["a"] = fp8_blocks(64, 96);
  EXPECT_EQ(read()->stored.format, fp8_blocks(64, 96));
  // Where blocks end with the tensor, both mean the same.
  formats = {{fp8_blocks(128, 128), fp8_blocks(64, 128)}, {}};
  EXPECT_EQ(read()->stored.format, fp8_blocks(128, 128));
}

TEST(StoredModel, NoFormatThatFitsIsAnErrorOfTheFirst) {
  ModelSpec stored;
  ASSERT_TRUE(stored.add("a.weight", {64, 160}, DType::f8_e4m3));
  ASSERT_TRUE(stored.add("a.weight_scale", {7, 7}, DType::f32));
  const StoredFormats formats{{named("fp8_channel"), named("fp8_block")}, {}};
  const auto plain = plain_tensors(stored, formats, QuantMethod::compressed_tensors, DType::bf16);
  ASSERT_FALSE(plain);
  EXPECT_THAT(plain.error().message, HasSubstr("the scales of 'a.weight' must be F32 [64, 1]"));
}

}  // namespace
}  // namespace reshard
