// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/cuda/tile_table.h"

namespace reshard::cuda {

/// Runs the copies of a table on a GPU, with one launch per level. Its tables stay on the device:
/// made once, run repeatedly.
class TileRunner {
 public:
  /// Copies the table to the device and waits for that. `most_blocks`: the thread blocks that run
  /// at a time, each of kTileThreads; 0: as many as the device holds. Fewer leave room for kernels
  /// of others. Errors: those of Device::kernel(); memory that is short.
  static Result<TileRunner> make(std::shared_ptr<const Device> device, const TileTable& table,
                                 int most_blocks = 0);

  /// Gives a stream of the device all levels. Neither waits nor allocates, so that it can be
  /// captured in a CUDA graph. The stream must run the work before this object goes. Errors: the
  /// driver's.
  Result<> launch(const Stream& stream) const;
  /// The same for one level. @pre level < num_launches()
  Result<> launch(const Stream& stream, std::size_t level) const;
  /// Launches of one run.
  std::size_t num_launches() const { return levels_.size(); }

 private:
  std::shared_ptr<const Device> device_;
  Function kernel_ = nullptr;
  Buffer tables_;
  TileLaunch launch_;
  std::vector<TileTable::Level> levels_;
  unsigned most_blocks_ = 0;
};

}  // namespace reshard::cuda
