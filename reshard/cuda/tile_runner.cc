// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tile_runner.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace reshard::cuda {
namespace {

/// Tables one after another, each as aligned as its entries need.
class Packed {
 public:
  template <class T>
  Index add(std::span<const T> table) {
    const auto aligned = (bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_.resize(aligned + table.size_bytes());
    if (!table.empty()) std::memcpy(bytes_.data() + aligned, table.data(), table.size_bytes());
    return static_cast<Index>(aligned);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

template <class T>
const T* entry(const Buffer& tables, Index at) {
  return reinterpret_cast<const T*>(tables.data() + at);
}

}  // namespace

Result<TileRunner> TileRunner::make(std::shared_ptr<const Device> device, const TileTable& table,
                                    int most_blocks) {
  TileRunner out;
  out.levels_.assign(table.levels().begin(), table.levels().end());
  if (out.levels_.empty()) return out;
  out.kernel_ = RESHARD_TRY(device->kernel(kTileKernel));
  out.most_blocks_ = most_blocks > 0
                         ? static_cast<unsigned>(most_blocks)
                         : static_cast<unsigned>(device->multiprocessors()) * kTileBlocks;
  Packed packed;
  const Index pieces = packed.add(table.pieces()), loops = packed.add(table.loops()),
              slices = packed.add(table.slices()), tiles = packed.add(table.tiles());
  const auto bytes = static_cast<Index>(packed.bytes().size());
  out.tables_ = RESHARD_TRY(Buffer::on_device(device, bytes));
  const Stream stream = RESHARD_TRY(Stream::make(device));
  RESHARD_TRY(stream.copy(out.tables_.data(), packed.bytes().data(), bytes));
  RESHARD_TRY(stream.synchronize());
  out.launch_ = {entry<CopyTile>(out.tables_, tiles),
                 entry<CopySlice>(out.tables_, slices),
                 entry<CopyPiece>(out.tables_, pieces),
                 entry<CopyLoop>(out.tables_, loops),
                 0,
                 0};
  out.device_ = std::move(device);
  return out;
}

Result<> TileRunner::launch(const Stream& stream) const {
  for (const TileTable::Level& level : levels_) {
    TileLaunch launch = launch_;
    launch.first_tile = level.first_tile;
    launch.end_tile = level.end_tile;
    void* arguments[] = {&launch};
    const unsigned blocks = std::min(most_blocks_, level.end_tile - level.first_tile);
    RESHARD_TRY(device_->call("cuLaunchKernel of the tiles of a refit", [&] {
      return device_->driver().cuLaunchKernel(kernel_, blocks, 1, 1, kTileThreads, 1, 1, 0,
                                              stream.handle(), arguments, nullptr);
    }));
  }
  return {};
}

}  // namespace reshard::cuda
