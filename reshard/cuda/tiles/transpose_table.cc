// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tiles/transpose_table.h"

#include <algorithm>
#include <optional>

#include "reshard/cuda/tiles/alignment.h"

namespace reshard::cuda {
namespace {

/// With fewer rows or columns most of a tile would be empty.
constexpr Index kFewest = 8;
/// Divisor takes numbers below 2^31.
constexpr Index kMax = Index{1} << 31;

/// The loop in which elements are adjacent on one side; none if it is too short or missing.
std::optional<int> adjacent(const StridedCopy& copy, Index StridedCopy::Loop::* stride) {
  for (int l = 0; l < copy.num_loops; ++l) {
    const StridedCopy::Loop& loop = copy.loops[static_cast<std::size_t>(l)];
    if (loop.*stride == copy.run_bytes && loop.count >= kFewest && loop.count < kMax) return l;
  }
  return std::nullopt;
}

/// The alignment of a side's first element and strides, but not between adjacent elements.
Alignment alignment(const CopyTask& task, int adjacent, bool is_source) {
  Alignment all;
  all.require(is_source ? task.src + task.copy.src_offset : task.dst + task.copy.dst_offset);
  for (int l = 0; l < task.copy.num_loops; ++l) {
    const StridedCopy::Loop& loop = task.copy.loops[static_cast<std::size_t>(l)];
    if (l != adjacent) all.require(is_source ? loop.src_stride : loop.dst_stride);
  }
  return all;
}

}  // namespace

bool TransposeTable::add(const CopyTask& task) {
  const StridedCopy& copy = task.copy;
  const Index width = copy.run_bytes;
  if (!std::has_single_bit(static_cast<std::uint64_t>(width)) || width > Alignment::kWidest)
    return false;
  const auto across = adjacent(copy, &StridedCopy::Loop::src_stride),
             down = adjacent(copy, &StridedCopy::Loop::dst_stride);
  if (!across || !down || *across == *down) return false;
  const Index matrices = copy.runs() / copy.loops[static_cast<std::size_t>(*across)].count /
                         copy.loops[static_cast<std::size_t>(*down)].count;
  const Alignment src = alignment(task, *across, true), dst = alignment(task, *down, false);
  if (matrices >= kMax || src.bytes() < width || dst.bytes() < width) return false;

  TransposePiece piece;
  piece.src = task.src + copy.src_offset;
  piece.dst = task.dst + copy.dst_offset;
  piece.log2_width = static_cast<std::uint8_t>(std::countr_zero(static_cast<std::uint64_t>(width)));
  piece.wide_src = width < kTransposeBytes && src.bytes() >= kTransposeBytes;
  piece.wide_dst = width < kTransposeBytes && dst.bytes() >= kTransposeBytes;
  piece.first_loop = static_cast<std::uint32_t>(loops_.size());
  for (int l = 0; l < copy.num_loops; ++l) {
    const StridedCopy::Loop& loop = copy.loops[static_cast<std::size_t>(l)];
    const auto count = static_cast<std::uint32_t>(loop.count);
    if (l == *across) {
      piece.cols = count;
      piece.dst_col = loop.dst_stride;
    } else if (l == *down) {
      piece.rows = count;
      piece.src_row = loop.src_stride;
    } else {
      loops_.push_back({divisor(count), loop.src_stride, loop.dst_stride});
      ++piece.num_loops;
    }
  }
  pieces_.push_back(piece);
  add_tiles(piece, static_cast<std::uint32_t>(matrices));
  return true;
}

void TransposeTable::add_tiles(const TransposePiece& piece, std::uint32_t matrices) {
  const auto index = static_cast<std::uint32_t>(pieces_.size() - 1);
  const std::uint32_t edge = transpose_edge(piece.log2_width);
  for (std::uint32_t m = 0; m < matrices; ++m)
    for (std::uint32_t row = 0; row < piece.rows; row += edge)
      for (std::uint32_t col = 0; col < piece.cols; col += edge)
        tiles_.push_back({index, m, row, col});
}

void TransposeTable::end_level() {
  const std::uint32_t first = levels_.empty() ? 0 : levels_.back().end_tile;
  levels_.push_back({first, static_cast<std::uint32_t>(tiles_.size())});
}

}  // namespace reshard::cuda
