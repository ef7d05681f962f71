// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tiles/tile_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/cuda/tiles/alignment.h"
#include "reshard/layout/clip.h"

namespace reshard::cuda {
namespace {

/// A piece has less than 2^31 vectors, which Divisor needs.
constexpr Index kMaxVectors = (Index{1} << 31) - 1;
/// The most slices of a tile: more would keep its thread block busy when others have ended.
constexpr std::size_t kMaxSlices = 512;
constexpr Index kWidest = Alignment::kWidest;

const std::byte* begin_of_source(const CopyTask& t) { return t.src + t.copy.src_offset; }
std::byte* begin_of_target(const CopyTask& t) { return t.dst + t.copy.dst_offset; }

Alignment alignment_of_strides(const StridedCopy& copy) {
  Alignment all;
  for (int l = 0; l < copy.num_loops; ++l) {
    all.require(copy.loops[static_cast<std::size_t>(l)].src_stride);
    all.require(copy.loops[static_cast<std::size_t>(l)].dst_stride);
  }
  return all;
}

/// Without its outermost loop if that has one iteration, so that the next one can be cut.
StridedCopy without_single_loop(StridedCopy copy) {
  if (copy.num_loops == 0 || copy.loops[0].count != 1) return copy;
  std::shift_left(copy.loops.begin(), copy.loops.begin() + copy.num_loops, 1);
  --copy.num_loops;
  return copy;
}

/// Bytes [begin, end) of each run.
CopyTask part_of_runs(CopyTask task, Index begin, Index end) {
  task.copy.src_offset += begin;
  task.copy.dst_offset += begin;
  task.copy.run_bytes = end - begin;
  return task;
}

constexpr int kLog2Eight = 3;

/// Takes eight values at a time if all their addresses are multiples of 16 bytes.
std::string convert_kernel(const CopyTask& task) {
  Alignment all = alignment_of_strides(task.copy);
  all.require(begin_of_source(task));
  all.require(begin_of_target(task));
  const DType from = task.conversion.from.dtype, to = task.conversion.to.dtype;
  if (all.bytes() < kWidest || task.copy.run_bytes % (size_of(to, 1) << kLog2Eight) != 0)
    return kConvertKernel;
  return fmt::format("{}_{}_{}", kConvertKernel, kernel_suffix(from), kernel_suffix(to));
}

}  // namespace

Result<> TileTable::add(const CopyTask& task) {
  const Index bytes = task.copy.bytes();
  if (bytes == 0) return {};
  bytes_ += bytes;
  if (!task.conversion.converts()) {
    if (!transposes_.add(task)) add_bits(task);
    return {};
  }
  const Index src_width = size_of(task.conversion.from.dtype, 1),
              dst_width = size_of(task.conversion.to.dtype, 1);
  Alignment src, dst;
  src.require(begin_of_source(task));
  dst.require(begin_of_target(task));
  for (int l = 0; l < task.copy.num_loops; ++l) {
    src.require(task.copy.loops[static_cast<std::size_t>(l)].src_stride);
    dst.require(task.copy.loops[static_cast<std::size_t>(l)].dst_stride);
  }
  if (src.bytes() < src_width || dst.bytes() < dst_width)
    return fail(Code::unsupported,
                fmt::format("{} values to convert to {} are not aligned to their size",
                            to_string(task.conversion.from), to_string(task.conversion.to)));
  converting_[convert_kernel(task)].push_back(task);
  return {};
}

/// Tiles of each kernel.
void TileTable::add_conversions() {
  for (const auto& [kernel, tasks] : converting_) {
    const auto first = static_cast<std::uint32_t>(tiles_.size());
    const int log2_values = kernel == kConvertKernel ? 0 : kLog2Eight;
    for (const CopyTask& task : tasks)
      add_piece(task, log2_values, size_of(task.conversion.to.dtype, 1) << log2_values);
    end_tile();
    conversions_.push_back({kernel, first, static_cast<std::uint32_t>(tiles_.size())});
  }
  converting_.clear();
}

/// Cuts runs of which only the ends are aligned badly.
void TileTable::add_bits(const CopyTask& task) {
  const Alignment strides = alignment_of_strides(task.copy);
  Alignment all = strides;
  all.require(begin_of_source(task));
  all.require(begin_of_target(task));
  all.require(task.copy.run_bytes);
  const auto place = reinterpret_cast<std::uintptr_t>(begin_of_target(task)) % kWidest;
  const bool same_place =
      reinterpret_cast<std::uintptr_t>(begin_of_source(task)) % kWidest == place;
  constexpr Index kWorthCutting = 16 * kWidest;
  if (all.bytes() == kWidest || strides.bytes() != kWidest || !same_place ||
      task.copy.run_bytes < kWorthCutting)
    return add_piece(task, all.log2(), all.bytes());
  const Index run = task.copy.run_bytes, head = (kWidest - static_cast<Index>(place)) % kWidest,
              tail = (run - head) % kWidest;
  for (const auto& [begin, end] :
       {std::pair(Index{0}, head), std::pair(head, run - tail), std::pair(run - tail, run)})
    if (begin < end) add_bits(part_of_runs(task, begin, end));
}

/// Cuts copies of too many vectors.
void TileTable::add_piece(const CopyTask& task, int log2_width, Index vector_bytes) {
  const Index vectors = task.copy.bytes() / vector_bytes;
  if (vectors > kMaxVectors) {
    const Index parts = vectors / kMaxVectors + 1;
    for (Index p = 0; p < parts; ++p) {
      CopyTask part = task;
      part.copy = without_single_loop(part_of_copy(task.copy, p, parts));
      if (part.copy.bytes() > 0) add_piece(part, log2_width, vector_bytes);
    }
    return;
  }
  CopyPiece piece;
  piece.src = begin_of_source(task);
  piece.dst = begin_of_target(task);
  piece.run = divisor(static_cast<std::uint32_t>(task.copy.run_bytes / vector_bytes));
  piece.first_loop = static_cast<std::uint32_t>(loops_.size());
  piece.num_loops = static_cast<std::uint8_t>(task.copy.num_loops);
  piece.log2_width = static_cast<std::uint8_t>(log2_width);
  piece.converts = task.conversion.converts();
  piece.conversion = task.conversion;
  for (int l = 0; l < task.copy.num_loops; ++l) {
    const StridedCopy::Loop& loop = task.copy.loops[static_cast<std::size_t>(l)];
    loops_.push_back(
        {divisor(static_cast<std::uint32_t>(loop.count)), loop.src_stride, loop.dst_stride});
  }
  pieces_.push_back(piece);
  add_slices(static_cast<std::uint32_t>(pieces_.size() - 1), vectors, vector_bytes);
}

/// Small pieces share a tile; large ones are cut.
void TileTable::add_slices(std::uint32_t piece, Index vectors, Index vector_bytes) {
  const Index most = kTileBytes / vector_bytes;
  for (Index first = 0; first < vectors;) {
    const Index room = std::max<Index>(1, (kTileBytes - filled_) / vector_bytes);
    const Index left = vectors - first;
    // A rest of less than half a tile goes with what comes before it.
    const Index count = left <= room + most / 2 ? left : room;
    slices_.push_back(
        {piece, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)});
    filled_ += count * vector_bytes;
    first += count;
    const std::size_t begin = tiles_.empty() ? 0 : tiles_.back().end;
    if (filled_ >= kTileBytes || slices_.size() - begin >= kMaxSlices) end_tile();
  }
}

void TileTable::end_tile() {
  const std::uint32_t first = tiles_.empty() ? 0 : tiles_.back().end;
  const auto end = static_cast<std::uint32_t>(slices_.size());
  if (first < end) tiles_.push_back({first, end});
  filled_ = 0;
}

void TileTable::end_level() {
  end_tile();
  const Level before = levels_.empty() ? Level{} : levels_.back();
  const std::uint32_t first = conversions_.empty()
                                  ? before.end_tile
                                  : std::max(before.end_tile, conversions_.back().end_tile);
  const auto end = static_cast<std::uint32_t>(tiles_.size());
  add_conversions();
  const auto conversions = static_cast<std::uint32_t>(conversions_.size());
  const std::size_t transposed =
      transposes_.levels().empty() ? 0 : transposes_.levels().back().end_tile;
  if (first == end && before.end_conversions == conversions &&
      transposed == transposes_.tiles().size())
    return;
  levels_.push_back({first, end, before.end_conversions, conversions});
  transposes_.end_level();
}

}  // namespace reshard::cuda
