// SPDX-License-Identifier: Apache-2.0
// Protects: what inspect says a layout does to a tensor is what the layout does.
#include "reshard/convert/inspect/explain_layout.h"

#include <gtest/gtest.h>

#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

/// Two tensors of 6 x 4 and one of 3, of bf16, and one that no rank holds.
std::shared_ptr<const ModelSpec> small_model() {
  ModelSpec model;
  EXPECT_TRUE(model.add("layers.0.a", {6, 4}, DType::bf16));
  EXPECT_TRUE(model.add("layers.1.a", {6, 4}, DType::bf16));
  EXPECT_TRUE(model.add("norm", {3}, DType::bf16));
  EXPECT_TRUE(model.add("lost", {2}, DType::bf16));
  return std::make_shared<const ModelSpec>(std::move(model));
}

std::vector<KindInLayout> explained() {
  LayoutBuilder b("made:by=hand", small_model());
  const MeshId mesh = b.add_mesh(*Mesh::make({{"tp", 4}, {"dp", 2}}, Rank(0)));
  const RankSetId all = b.ranks_where(mesh, {}), first = b.ranks_where(mesh, {{1, 0}});
  const CutId tp = b.add_cut(cut_over(0, CutRule::spread, 3));
  // Both halves of the first tensor with the second between them, and two rows of padding.
  Section packed{{14, 4}, {tp}, {}};
  place(packed, TensorId(0), Box{{0, 3}, {0, 4}}, {0, 0});
  place(packed, TensorId(1), Box{{0, 6}, {0, 4}}, {3, 0});
  place(packed, TensorId(0), Box{{3, 6}, {0, 4}}, {9, 0});
  b.add(Slot{.name = "fused.weight7",
             .dtype = DType::bf16,
             .mesh = mesh,
             .ranks = all,
             .padded = true,
             .sections = {packed}});
  b.add(Slot{.name = "norm",
             .dtype = DType::f32,
             .mesh = mesh,
             .ranks = first,
             .sections = {whole_tensor(b.model(), TensorId(2))},
             .map = ValueMap::plus_one,
             .casts = true,
             .rule = 7});
  // Three pairs of rows over four ranks: one of them is held twice.
  const CutId pairs = b.add_cut(cut_over(0, CutRule::spread, 2));
  b.add(Slot{.name = "narrow",
             .dtype = DType::bf16,
             .mesh = mesh,
             .ranks = all,
             .sections = {whole_tensor(b.model(), TensorId(1), {pairs})}});
  auto layout = std::move(b).finish();
  EXPECT_TRUE(layout) << layout.error().message;
  return explain_layout(*layout, SlotFiles(*layout));
}

TEST(Explain, says_cut_pieces_neighbours_padding_and_values) {
  const auto kinds = explained();
  ASSERT_EQ(kinds.size(), 5u);
  EXPECT_EQ(kinds[0].pattern, "layers.N.a");
  EXPECT_EQ(kinds[0].local, "fused.weightN");
  EXPECT_EQ(kinds[0].how, "dim 0 over tp=4; in 2 pieces; beside 1 other; padded");
  EXPECT_EQ(kinds[0].ranks, 8);
  EXPECT_EQ(kinds[0].count, 1);
  EXPECT_EQ(kinds[1].how, "dim 0 over tp=4; beside 1 other; padded");
  EXPECT_EQ(kinds[2].local, "narrow");
  EXPECT_EQ(kinds[2].how, "dim 0 over tp=4, repeated");
  EXPECT_EQ(kinds[2].shape, (Dims{2, 4}));
  EXPECT_EQ(kinds[3].local, "norm");
  EXPECT_EQ(kinds[3].how, "whole; as F32; plus_one; by rule 7");
  EXPECT_EQ(kinds[3].ranks, 4);
  EXPECT_EQ(kinds[4].pattern, "lost");
  EXPECT_EQ(kinds[4].local, "");
  EXPECT_EQ(kinds[4].how, "no rank holds it");
}

}  // namespace
}  // namespace reshard
