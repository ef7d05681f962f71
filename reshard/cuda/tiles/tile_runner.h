// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/cuda/tiles/tile_table.h"

namespace reshard::cuda {

/// Runs the copies of a table on a GPU: one launch per level, one more for what is transposed, and
/// one for each pair of dtypes that is converted in it. Its tables stay on the device: made once,
/// run repeatedly.
class TileRunner {
 public:
  /// Copies the table to the device and waits for that. `most_blocks`: the thread blocks that run
  /// at a time, each of kTileThreads; 0: as many as the device holds. Fewer leave room for kernels
  /// of others. Errors: those of Device::kernel(); memory that is short.
  static Result<TileRunner> make(const std::shared_ptr<const Device>& device,
                                 const TileTable& table, int most_blocks = 0);

  /// Gives a stream of the device all levels. Neither waits nor allocates, so that it can be
  /// captured in a CUDA graph. The stream must run the work before this object goes. Errors: the
  /// driver's.
  Result<> launch(const Stream& stream) const;
  /// The same for one level. @pre level < num_levels()
  Result<> launch(const Stream& stream, std::size_t level) const;
  std::size_t num_levels() const { return levels_.size(); }
  /// Launches of one level.
  std::size_t num_launches(std::size_t level) const;

 private:
  Function copy_ = nullptr, transpose_ = nullptr;
  struct Conversions {
    Function kernel = nullptr;
    std::uint32_t first_tile = 0, end_tile = 0;
  };
  std::vector<Conversions> conversions_;
  Buffer tables_;
  TileLaunch launch_;
  TransposeLaunch transposes_;
  struct Level {
    TileTable::Level copies;
    TransposeTable::Level transposes;
  };
  std::vector<Level> levels_;
  unsigned most_blocks_ = 0;
};

}  // namespace reshard::cuda
