// SPDX-License-Identifier: Apache-2.0
// Protects: each name denotes one quantised format, and a format without a name is described.
#include "reshard/base/quant_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <vector>

namespace reshard {
namespace {

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  std::istringstream text(known_quant_formats());
  for (std::string name; std::getline(text >> std::ws, name, ',');) names.push_back(name);
  return names;
}

TEST(QuantFormat, every_known_name_reads_back_to_itself) {
  const std::vector<std::string> names = known_names();
  EXPECT_EQ(names.size(), 22U);
  for (const std::string& name : names) {
    const auto format = quant_format_from_name(name);
    ASSERT_TRUE(format) << name;
    EXPECT_EQ(to_string(*format), name);
  }
}

TEST(QuantFormat, names_have_the_formats_of_their_sources) {
  const auto mxfp4 = quant_format_from_name("mxfp4_swizzled");
  ASSERT_TRUE(mxfp4);
  EXPECT_EQ(mxfp4->data, DType::f4);
  EXPECT_EQ(mxfp4->scale, DType::f8_e8m0);
  EXPECT_EQ(mxfp4->block_cols, 32);
  EXPECT_EQ(mxfp4->order, ScaleOrder::swizzled);
  const auto block = quant_format_from_name("fp8_block");
  ASSERT_TRUE(block);
  EXPECT_EQ(block->block_rows, 128);
  EXPECT_EQ(block->block_cols, 128);
  EXPECT_EQ(block->scale, DType::f32);
  EXPECT_EQ(block->rule, ScaleRule::exact);
  EXPECT_FALSE(quant_format_from_name("MXFP8"));
  EXPECT_FALSE(quant_format_from_name(""));
}

TEST(QuantFormat, a_format_without_a_name_is_spelled_out) {
  EXPECT_EQ(to_string({.scale = DType::f32, .block_rows = 64, .block_cols = 0}),
            "F8_E4M3 64x* F32 up");
  EXPECT_EQ(to_string({.order = ScaleOrder::swizzled, .zero_block = 127}),
            "F8_E4M3 1x32 F8_E8M0 up swizzled zero 127");
  EXPECT_EQ(to_string({.data = DType::f4,
                       .scale = DType::f8_e4m3,
                       .block_cols = 32,
                       .rule = ScaleRule::exact,
                       .tensor_factor = true}),
            "F4 1x32 F8_E4M3 exact factor");
  QuantFormat divided = *quant_format_from_name("nvfp4_divisor");
  EXPECT_NE(divided, *quant_format_from_name("nvfp4"));
  divided.zero_block = 1;
  EXPECT_EQ(to_string(divided), "F4 1x16 F8_E4M3 exact divisor zero 1");
}

}  // namespace
}  // namespace reshard
