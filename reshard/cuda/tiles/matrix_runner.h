// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/cuda/tiles/matrix_table.h"

namespace reshard::cuda {

/// Finds the maxima of a table on a GPU. Its tables stay on the device: made once, run repeatedly.
class MaximumRunner {
 public:
  /// Copies the table to the device and waits for that. `most_blocks` as TileRunner::make().
  /// Errors: those of Device::kernel(); memory that is short.
  static Result<MaximumRunner> make(const std::shared_ptr<const Device>& device,
                                    const MaximumTable& table, int most_blocks = 0);

  /// Gives a stream of the device one level: a launch, or none if the level is empty. Neither waits
  /// nor allocates. The stream must run the work before this object goes. Errors: the driver's.
  /// @pre level < num_levels()
  Result<> launch(const Stream& stream, std::size_t level) const;
  std::size_t num_levels() const { return levels_.size(); }

 private:
  Function kernel_ = nullptr;
  Buffer tables_;
  MaximumLaunch launch_;
  std::vector<MaximumTable::Level> levels_;
  unsigned most_blocks_ = 0;
};

/// Does the work of a table of matrices on a GPU. Its tables stay on the device: made once, run
/// repeatedly.
class MatrixRunner {
 public:
  /// As MaximumRunner::make().
  static Result<MatrixRunner> make(const std::shared_ptr<const Device>& device,
                                   const MatrixTable& table, int most_blocks = 0);

  /// Gives a stream of the device one level: a launch for each kind of matrix (way, dtype, codes);
  /// two that find amaxes; none if the level is empty. Neither waits nor allocates. The stream must
  /// run the work before this object goes, and before another stream gets work of this object.
  /// Errors: the driver's.
  /// @pre level < num_levels()
  Result<> launch(const Stream& stream, std::size_t level) const;
  std::size_t num_levels() const { return levels_.size(); }

 private:
  struct Launch {
    Function kernel = nullptr;
    std::uint32_t first_tile = 0, end_tile = 0;
  };
  std::vector<Launch> launches_;
  Buffer tables_, tile_amaxes_;
  MaximumRunner amaxes_;  ///< from those of tiles.
  MatrixLaunch launch_;
  std::vector<MatrixTable::Level> levels_;
  unsigned most_blocks_ = 0;
};

}  // namespace reshard::cuda
