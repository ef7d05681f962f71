// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tiles/matrix_runner.h"

#include <algorithm>

#include "reshard/cuda/tiles/launch_kernel.h"
#include "reshard/cuda/tiles/packed_tables.h"

namespace reshard::cuda {
namespace {

constexpr const char* kWhat = "cuLaunchKernel of quantised matrices";

/// The amax of each slice is the largest of its tiles'.
Result<MaximumTable> amaxes_of_slices(const MatrixTable& table, const float* tile_amaxes) {
  MaximumTable out;
  for (const MatrixTable::Level& level : table.levels()) {
    for (std::uint32_t i = level.first_amax; i < level.end_amax; ++i) {
      const MatrixTable::Amax& amax = table.amaxes()[i];
      const float* const from = tile_amaxes == nullptr ? nullptr : tile_amaxes + amax.first_tile;
      RESHARD_TRY(out.add(from, Index{amax.end_tile} - amax.first_tile, amax.to));
    }
    out.end_level();
  }
  return out;
}

}  // namespace

Result<MaximumRunner> MaximumRunner::make(const std::shared_ptr<const Device>& device,
                                          const MaximumTable& table, int most_blocks) {
  MaximumRunner out;
  out.levels_.assign(table.levels().begin(), table.levels().end());
  if (table.maxima().empty()) return out;
  out.kernel_ = RESHARD_TRY(device->kernel(kMaximumKernel));
  out.most_blocks_ = blocks_at_a_time(*device, most_blocks);
  PackedTables packed;
  const Index maxima = packed.add(table.maxima());
  out.tables_ = RESHARD_TRY(packed.copy_to(device));
  out.launch_.maxima = table_at<Maximum>(out.tables_, maxima);
  return out;
}

Result<> MaximumRunner::launch(const Stream& stream, std::size_t level) const {
  MaximumLaunch launch = launch_;
  launch.first = levels_[level].first;
  launch.end = levels_[level].end;
  if (launch.first == launch.end) return {};
  return launch_kernel(stream, kernel_, std::min(most_blocks_, launch.end - launch.first), launch,
                       kWhat);
}

Result<MatrixRunner> MatrixRunner::make(const std::shared_ptr<const Device>& device,
                                        const MatrixTable& table, int most_blocks) {
  MatrixRunner out;
  out.levels_.assign(table.levels().begin(), table.levels().end());
  if (!table.tiles().empty()) {
    for (const MatrixTable::Launch& launch : table.launches())
      out.launches_.push_back(
          {RESHARD_TRY(device->kernel(launch.kernel.c_str())), launch.first_tile, launch.end_tile});
    out.most_blocks_ = blocks_at_a_time(*device, most_blocks);
    PackedTables packed;
    const Index matrices = packed.add(table.matrices()), tiles = packed.add(table.tiles());
    out.tables_ = RESHARD_TRY(packed.copy_to(device));
    out.launch_.matrices = table_at<MatrixPair>(out.tables_, matrices);
    out.launch_.tiles = table_at<MatrixTile>(out.tables_, tiles);
  }
  if (table.work() == MatrixWork::amax) {
    out.tile_amaxes_ = RESHARD_TRY(
        Buffer::on_device(device, std::ssize(table.tiles()) * static_cast<Index>(sizeof(float))));
    out.launch_.amaxes = reinterpret_cast<float*>(out.tile_amaxes_.data());
    const MaximumTable amaxes = RESHARD_TRY(amaxes_of_slices(table, out.launch_.amaxes));
    out.amaxes_ = RESHARD_TRY(MaximumRunner::make(device, amaxes, most_blocks));
  }
  return out;
}

Result<> MatrixRunner::launch(const Stream& stream, std::size_t level) const {
  for (std::size_t i = levels_[level].first_launch; i < levels_[level].end_launch; ++i) {
    const Launch& part = launches_[i];
    MatrixLaunch launch = launch_;
    launch.first_tile = part.first_tile;
    launch.end_tile = part.end_tile;
    RESHARD_TRY(launch_kernel(stream, part.kernel,
                              std::min(most_blocks_, part.end_tile - part.first_tile), launch,
                              kWhat));
  }
  return amaxes_.num_levels() == 0 ? Result<>() : amaxes_.launch(stream, level);
}

}  // namespace reshard::cuda
