// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tile_runner.h"

#include <algorithm>

#include "reshard/cuda/packed_tables.h"

namespace reshard::cuda {

Result<TileRunner> TileRunner::make(std::shared_ptr<const Device> device, const TileTable& table,
                                    int most_blocks) {
  TileRunner out;
  out.levels_.assign(table.levels().begin(), table.levels().end());
  if (out.levels_.empty()) return out;
  out.kernel_ = RESHARD_TRY(device->kernel(kTileKernel));
  out.most_blocks_ = most_blocks > 0
                         ? static_cast<unsigned>(most_blocks)
                         : static_cast<unsigned>(device->multiprocessors()) * kTileBlocks;
  PackedTables packed;
  const Index pieces = packed.add(table.pieces()), loops = packed.add(table.loops()),
              slices = packed.add(table.slices()), tiles = packed.add(table.tiles());
  out.tables_ = RESHARD_TRY(packed.copy_to(device));
  out.launch_ = {table_at<CopyTile>(out.tables_, tiles),
                 table_at<CopySlice>(out.tables_, slices),
                 table_at<CopyPiece>(out.tables_, pieces),
                 table_at<CopyLoop>(out.tables_, loops),
                 0,
                 0};
  out.device_ = std::move(device);
  return out;
}

Result<> TileRunner::launch(const Stream& stream) const {
  for (std::size_t level = 0; level < levels_.size(); ++level) RESHARD_TRY(launch(stream, level));
  return {};
}

Result<> TileRunner::launch(const Stream& stream, std::size_t level) const {
  TileLaunch launch = launch_;
  launch.first_tile = levels_[level].first_tile;
  launch.end_tile = levels_[level].end_tile;
  void* arguments[] = {&launch};
  const unsigned blocks = std::min(most_blocks_, launch.end_tile - launch.first_tile);
  return device_->call("cuLaunchKernel of the tiles of a refit", [&] {
    return device_->driver().cuLaunchKernel(kernel_, blocks, 1, 1, kTileThreads, 1, 1, 0,
                                            stream.handle(), arguments, nullptr);
  });
}

}  // namespace reshard::cuda
