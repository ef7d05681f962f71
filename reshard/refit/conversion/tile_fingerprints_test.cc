// SPDX-License-Identifier: Apache-2.0
// Protects: fingerprints of bytes that arrive in tiles equal those of the same bytes in memory,
// however the tiles cut the tensors.
#include "reshard/refit/conversion/tile_fingerprints.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/random_layout_testutil.h"

namespace reshard::conversion {
namespace {

constexpr Index kLine = 64;

/// Pieces of `step` bytes of a rank's local tensors, and `over` bytes of the next, two a tile.
TileRanges pieces_of(const RankBuffers& buffers, Rank me, Index step, Index over) {
  const Index stride = (step + over + kLine - 1) / kLine * kLine;
  TileRanges tiles;
  for (const SlotId slot : buffers.layout().slots_of(me))
    for (Index at = 0; at < buffers.bytes(me, slot); at += step) {
      if (tiles.empty() || tiles.back().size() == 2) tiles.emplace_back();
      const Index place = tiles.back().empty() ? 0 : stride;
      tiles.back().push_back(
          {buffers.at(me, slot) + at, std::min(step + over, buffers.bytes(me, slot) - at), place});
    }
  return tiles;
}

RC_GTEST_PROP(TileFingerprints, are_those_of_memory, ()) {
  const auto model = random_model();
  const auto layout = random_layout(model);
  const RankBuffers buffers = allocate_all(layout);
  fill_elements(buffers);
  const auto forms = forms_of(*layout);
  const Index step = *rc::gen::element<Index>(8, 24, 64, 4096);
  const Index over = *rc::gen::element<Index>(0, 8, 40, 4096);
  for (const Rank me : layout->ranks().members()) {
    CellReplicas replicas(*layout, forms);
    RC_ASSERT(replicas.find(&buffers, me).has_value());
    const TileRanges pieces = pieces_of(buffers, me, step, over);
    TileFingerprints fingerprints(replicas, pieces);
    std::vector<std::byte> scratch(static_cast<std::size_t>(2 * (step + over + kLine)));
    for (std::size_t tile = 0; tile < pieces.size(); ++tile) {
      for (const TileRange& range : pieces[tile])
        std::memcpy(scratch.data() + range.at, range.begin, static_cast<std::size_t>(range.bytes));
      RC_ASSERT(fingerprints.read(tile, scratch.data()).has_value());
    }
    const auto sums = fingerprints.sums();
    RC_ASSERT(replicas.read(1, {}).has_value());
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (replicas.all()[i].same_as < 0) RC_ASSERT(sums[i] == replicas.all()[i].fingerprint);
  }
}

TEST(TileFingerprints, are_of_the_columns_that_the_band_uses) {
  auto model = std::make_shared<ModelSpec>();
  ASSERT_TRUE(model->add("w", {6, 8}, DType::u8));
  LayoutBuilder b("whole", model);
  const MeshId mesh = b.add_mesh(*Mesh::make({{"x", 1}}, Rank(0)));
  b.add(Slot{.name = "w",
             .dtype = DType::u8,
             .mesh = mesh,
             .ranks = b.ranks_where(mesh, {}),
             .sections = {whole_tensor(*model, TensorId(0), {})}});
  const auto layout = std::make_shared<const ModelLayout>(*std::move(b).finish());
  const RankBuffers buffers = allocate_all(layout);
  fill_elements(buffers);
  const std::byte* const matrix = buffers.at(Rank(0), SlotId(0));
  CellReplicas replicas(*layout, forms_of(*layout));
  ASSERT_TRUE(replicas.find(&buffers, Rank(0)));
  ASSERT_TRUE(replicas.read(1, {}));
  // Two tiles of one matrix of 6 x 8 bytes: its columns [0, 3) and [3, 8), all that lies between
  // included.
  const TileRanges columns{{{matrix, 5 * 8 + 3, 0, 3, 8}}, {{matrix + 3, 5 * 8 + 5, 0, 5, 8}}};
  for (std::size_t wrong = 0; wrong < 3; ++wrong) {
    TileFingerprints fingerprints(replicas, columns);
    for (std::size_t tile = 0; tile < 2; ++tile) {
      std::vector<std::byte> scratch(48);
      std::memcpy(scratch.data(), columns[tile][0].begin,
                  static_cast<std::size_t>(columns[tile][0].bytes));
      // A byte of row 2 that this tile uses.
      if (tile == wrong) scratch[2 * 8 + 1] ^= std::byte{1};
      // One that is only read along.
      scratch[2 * 8 + 6] ^= std::byte{1};
      ASSERT_TRUE(fingerprints.read(tile, scratch.data()));
    }
    EXPECT_EQ(fingerprints.sums()[0] == replicas.all()[0].fingerprint, wrong == 2) << wrong;
  }
}

TEST(ClipBox, parts_are_disjoint_and_all) {
  // [3, 4, 5], stored with its second dimension outermost.
  const TileBox whole{Box({Interval{2, 5}, Interval{0, 4}, Interval{7, 12}}),
                      Strided{100, {5, 30, 1}}};
  for (Index cut = 90; cut < 240; ++cut) {
    std::vector<TileBox> parts;
    clip_box(whole, 0, cut, parts);
    clip_box(whole, cut, 1000, parts);
    Index volume = 0;
    for (const TileBox& part : parts) volume += part.box.volume();
    EXPECT_EQ(volume, whole.box.volume()) << cut;
    parts.clear();
    clip_box(whole, 0, cut, parts);
    for (const TileBox& part : parts) {
      Index last = part.where.offset;
      for (int d = 0; d < 3; ++d) last += (part.box[d].size() - 1) * part.where.strides[d];
      EXPECT_LT(last, cut);
    }
  }
}

}  // namespace
}  // namespace reshard::conversion
