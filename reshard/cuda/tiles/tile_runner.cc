// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tiles/tile_runner.h"

#include <algorithm>

#include "reshard/cuda/tiles/launch_kernel.h"
#include "reshard/cuda/tiles/packed_tables.h"

namespace reshard::cuda {
namespace {

/// Launches a kernel for tiles, if there are any.
template <class Launch>
Result<> run(const Stream& stream, Function kernel, unsigned most_blocks, Launch launch,
             std::uint32_t first, std::uint32_t end) {
  if (first == end) return {};
  launch.first_tile = first;
  launch.end_tile = end;
  return launch_kernel(stream, kernel, std::min(most_blocks, end - first), launch,
                       "cuLaunchKernel of the tiles of a refit");
}

}  // namespace

Result<TileRunner> TileRunner::make(const std::shared_ptr<const Device>& device,
                                    const TileTable& table, int most_blocks) {
  TileRunner out;
  const TransposeTable& transposes = table.transposes();
  for (std::size_t level = 0; level < table.levels().size(); ++level)
    out.levels_.push_back({table.levels()[level], transposes.levels()[level]});
  if (out.levels_.empty()) return out;
  out.copy_ = RESHARD_TRY(device->kernel(kTileKernel));
  for (const TileTable::Conversions& all : table.conversions())
    out.conversions_.push_back(
        {RESHARD_TRY(device->kernel(all.kernel.c_str())), all.first_tile, all.end_tile});
  out.transpose_ = RESHARD_TRY(device->kernel(kTransposeKernel));
  out.most_blocks_ = blocks_at_a_time(*device, most_blocks);
  PackedTables packed;
  const Index pieces = packed.add(table.pieces()), loops = packed.add(table.loops()),
              slices = packed.add(table.slices()), tiles = packed.add(table.tiles()),
              transposed = packed.add(transposes.pieces()),
              transpose_loops = packed.add(transposes.loops()),
              transpose_tiles = packed.add(transposes.tiles());
  out.tables_ = RESHARD_TRY(packed.copy_to(device));
  out.launch_ = {table_at<CopyTile>(out.tables_, tiles),
                 table_at<CopySlice>(out.tables_, slices),
                 table_at<CopyPiece>(out.tables_, pieces),
                 table_at<CopyLoop>(out.tables_, loops),
                 0,
                 0};
  out.transposes_ = {table_at<TransposeTile>(out.tables_, transpose_tiles),
                     table_at<TransposePiece>(out.tables_, transposed),
                     table_at<CopyLoop>(out.tables_, transpose_loops), 0, 0};
  return out;
}

Result<> TileRunner::launch(const Stream& stream) const {
  for (std::size_t level = 0; level < levels_.size(); ++level) RESHARD_TRY(launch(stream, level));
  return {};
}

Result<> TileRunner::launch(const Stream& stream, std::size_t level) const {
  const auto& [copies, transposes] = levels_[level];
  RESHARD_TRY(run(stream, copy_, most_blocks_, launch_, copies.first_tile, copies.end_tile));
  for (std::size_t i = copies.first_conversions; i < copies.end_conversions; ++i)
    RESHARD_TRY(run(stream, conversions_[i].kernel, most_blocks_, launch_,
                    conversions_[i].first_tile, conversions_[i].end_tile));
  return run(stream, transpose_, most_blocks_, transposes_, transposes.first_tile,
             transposes.end_tile);
}

std::size_t TileRunner::num_launches(std::size_t level) const {
  const auto& [copies, transposes] = levels_[level];
  return (copies.first_tile < copies.end_tile ? 1U : 0U) + copies.end_conversions -
         copies.first_conversions + (transposes.first_tile < transposes.end_tile ? 1U : 0U);
}

}  // namespace reshard::cuda
