// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/tiles.h"

#include <algorithm>
#include <tuple>

#include "reshard/layout/clip.h"

namespace reshard::program {
namespace {

/// True if packed source rows are written as slices of longer destination rows.
bool gathers(const StridedCopy& copy) {
  if (copy.num_loops == 0) return false;
  const auto& inner = copy.loops[static_cast<std::size_t>(copy.num_loops - 1)];
  return inner.src_stride == copy.run_bytes && inner.dst_stride != copy.run_bytes;
}

/// The tensor whose rows decide which copies run together. For gathers, the destination, so that
/// each row is written once; else the source, so that slices for many destinations are read once.
std::tuple<bool, Rank, SlotId> tensor_of(const Move& m) {
  if (gathers(m.copy)) return {true, m.dst, m.dst_slot};
  return {false, m.src, m.src_slot};
}

std::pair<int, Index> place_of(const Move& m) {
  return {m.copy.num_loops, gathers(m.copy) ? m.copy.dst_offset : m.copy.src_offset};
}

}  // namespace

std::vector<PieceGroup> group_moves(std::vector<Move>& moves) {
  std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::pair(tensor_of(a), place_of(a)) < std::pair(tensor_of(b), place_of(b));
  });
  std::vector<PieceGroup> groups;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (i == 0 || tensor_of(moves[i - 1]) != tensor_of(moves[i])) groups.push_back({i, i});
    groups.back().end = i + 1;
  }
  return groups;
}

void add_tiles(Builder& builder, std::span<const ProgramPiece> pieces,
               std::span<const PieceGroup> groups, Index tile_bytes,
               const std::vector<StepId>& waits) {
  Index filled = 0;
  const auto end_tile = [&] {
    if (filled > 0) builder.tile(filled, filled, waits);
    filled = 0;
  };
  for (const PieceGroup& group : groups) {
    const auto members = pieces.subspan(group.first, group.end - group.first);
    Index bytes = 0;
    for (const ProgramPiece& piece : members) bytes += piece.copy.bytes();
    const Index parts = std::max<Index>(1, (bytes + tile_bytes / 2) / tile_bytes);
    if (parts > 1) end_tile();
    for (Index p = 0; p < parts; ++p) {
      for (ProgramPiece piece : members) {
        piece.copy = part_of_copy(piece.copy, p, parts);
        filled += piece.copy.bytes();
        builder.copy(piece, true);
      }
      if (parts > 1 || filled >= tile_bytes) end_tile();
    }
  }
  end_tile();
}

}  // namespace reshard::program
