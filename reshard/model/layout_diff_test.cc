// SPDX-License-Identifier: Apache-2.0
// Protects: layouts differ if and only if a local tensor of a rank does, and it is named.
#include "reshard/model/layout_diff.h"
#include "reshard/model/families/explicit.h"

#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/explicit_slots.h"
#include "reshard/model/families.h"

namespace reshard {
namespace {

std::string text_of(const std::vector<LayoutDifference>& all) {
  std::string text;
  for (const LayoutDifference& d : all)
    text += d.name + " " + to_string(d.ranks) + ": " + d.what + "\n";
  return text;
}

TEST(LayoutDiff, ALayoutAndItsExplicitFormAreEqual) {
  for (const ModelConfig& config : tiny_models())
    for (const char* text : {"hf", "megatron:tp=2", "vllm:tp=2", "vllm:tp=2,ep=2"}) {
      const auto model = model_of(config);
      const auto layout = try_layout(text, model, config);
      if (!layout) continue;
      const auto same = explicit_layout({"explicit", "", {}}, {model}, explicit_tensors(*layout));
      ASSERT_TRUE(same.has_value()) << same.error().message;
      EXPECT_EQ(text_of(diff_layouts(*layout, *same)), "") << text;
      EXPECT_EQ(text_of(diff_layouts(*same, *layout)), "") << text;
    }
}

TEST(LayoutDiff, ADifferentSizeIsSaidPerTensorWithItsRanks) {
  const ModelConfig config = tiny_dense();
  const auto model = model_of(config);
  const auto two = layout_of("vllm:tp=2", model, config);
  const auto other = layout_of("vllm:tp=2,vocab_multiple=256", model, config);
  EXPECT_EQ(text_of(diff_layouts(*two, *other)),
            "lm_head.weight {0-1}: shape [64, 16] and [128, 16]\n"
            "model.embed_tokens.weight {0-1}: shape [64, 16] and [128, 16]\n");
}

/// One local tensor x [4, 4] on rank 0, made of boxes of a [4, 4] and b [4, 4].
ModelLayout layout_with(std::vector<PlacedBox> parts, DType dtype = DType::f32,
                        ValueMap map = ValueMap::identity, const std::string& name = "x") {
  auto model = std::make_shared<ModelSpec>();
  EXPECT_TRUE(model->add("a", {4, 4}, DType::f32).has_value());
  EXPECT_TRUE(model->add("b", {4, 4}, DType::f32).has_value());
  LayoutBuilder builder("test", model);
  ExplicitSlots slots(builder);
  slots.add(RankSet::range(0, 1),
            {name, dtype, {4, 4}, std::move(parts), true, {}, map, dtype != DType::f32});
  slots.finish();
  auto layout = std::move(builder).finish();
  EXPECT_TRUE(layout.has_value()) << layout.error().message;
  return *std::move(layout);
}

const PlacedBox kWhole{TensorId(0), {{0, 4}, {0, 4}}, {0, 0}, {0, 1}};

TEST(LayoutDiff, HowBoxesAreCutDoesNotMatter) {
  const auto rows = layout_with({{TensorId(0), {{2, 4}, {0, 4}}, {2, 0}, {0, 1}},
                                 {TensorId(0), {{0, 2}, {0, 4}}, {0, 0}, {0, 1}}});
  const auto columns = layout_with({{TensorId(0), {{0, 4}, {0, 1}}, {0, 0}, {0, 1}},
                                    {TensorId(0), {{0, 4}, {1, 4}}, {0, 1}, {0, 1}}});
  EXPECT_EQ(text_of(diff_layouts(rows, columns)), "");
  EXPECT_EQ(text_of(diff_layouts(layout_with({kWhole}), columns)), "");
}

TEST(LayoutDiff, WhatDiffersIsSaid) {
  const auto whole = layout_with({kWhole});
  const auto said = [&](const ModelLayout& other) { return text_of(diff_layouts(whole, other)); };
  EXPECT_EQ(said(layout_with({{TensorId(0), {{0, 4}, {0, 4}}, {0, 0}, {1, 0}}})),
            "x {0}: other elements of 'a'\n");
  EXPECT_EQ(said(layout_with({{TensorId(0), {{0, 4}, {0, 3}}, {0, 0}, {0, 1}}})),
            "x {0}: other elements of 'a'\n");
  EXPECT_EQ(said(layout_with({{TensorId(1), {{0, 4}, {0, 4}}, {0, 0}, {0, 1}}})),
            "x {0}: other elements of 'a', 'b'\n");
  EXPECT_EQ(said(layout_with({kWhole}, DType::bf16)), "x {0}: F32 and BF16\n");
  EXPECT_EQ(said(layout_with({kWhole}, DType::f32, ValueMap::plus_one)),
            "x {0}: F32 and F32 as plus_one\n");
  EXPECT_EQ(said(layout_with({kWhole}, DType::f32, ValueMap::identity, "y")),
            "x {0}: only in the first\ny {0}: only in the second\n");
}

}  // namespace
}  // namespace reshard
