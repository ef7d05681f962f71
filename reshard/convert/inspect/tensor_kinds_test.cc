// SPDX-License-Identifier: Apache-2.0
// Protects: tensors are grouped by the pattern of their names, their dtype and the shape in files.
#include "reshard/convert/inspect/tensor_kinds.h"

#include <gtest/gtest.h>

namespace reshard {
namespace {

TEST(TensorKinds, are_names_without_numbers) {
  ModelSpec model;
  ASSERT_TRUE(model.add("layers.0.experts.0.up", {2, 3}, DType::bf16).has_value());
  ASSERT_TRUE(model.add("head", {4}, DType::f32).has_value());
  ASSERT_TRUE(model.add("layers.0.experts.11.up", {2, 3}, DType::bf16).has_value());
  ASSERT_TRUE(model.add("layers.1.experts.0.up", {2, 4}, DType::bf16).has_value());
  ASSERT_TRUE(model.add("layers.x1.up", {1}, DType::bf16).has_value());
  const auto kinds = tensor_kinds(model);
  ASSERT_EQ(kinds.size(), 4u);
  EXPECT_EQ(kinds[0].pattern, "layers.N.experts.N.up");
  EXPECT_EQ(kinds[0].count, 2);
  EXPECT_EQ(kinds[0].bytes, 24);
  EXPECT_EQ(kinds[1].pattern, "head");
  EXPECT_EQ(kinds[2].shape, (Dims{2, 4}));
  EXPECT_EQ(kinds[3].pattern, "layers.x1.up");
}

TEST(TensorKinds, grouped_experts_and_virtual_stages_are_counted_but_names_with_digits_are_not) {
  EXPECT_EQ(pattern_of("model1.experts.linear_fc1.weight17"), "modelN.experts.linear_fc1.weightN");
  EXPECT_EQ(pattern_of("linear_fc2.bias3"), "linear_fc2.biasN");
  EXPECT_EQ(pattern_of("experts.3.w1.weight"), "experts.N.w1.weight");
  EXPECT_EQ(pattern_of("model.conv1d.weight"), "model.conv1d.weight");
}

TEST(TensorKinds, shapes_are_those_of_files) {
  ModelSpec model;
  ASSERT_TRUE(model.add("gate_up", {4, 8, 3, 2}, DType::bf16, {1U << 2}).has_value());
  EXPECT_EQ(tensor_kinds(model)[0].shape, (Dims{4, 8, 6}));
}

}  // namespace
}  // namespace reshard
