// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/cuda/matrix_tiles.h"
#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/transform/quantise.h"

namespace reshard::cuda {

/// Collects matrices in the memory of a GPU that are all quantised, or all dequantised.
class MatrixTable {
 public:
  /// Adds a matrix of values, and its data, scales and factor: all rows. Their addresses are the
  /// GPU's. Errors: those of check_quant_format(); `unsupported` if addresses and rows are not
  /// aligned to their elements, or a side has 2^31 elements.
  Result<> add(const FloatMatrix& values, const QuantMatrix& stored);

  std::span<const MatrixPair> matrices() const { return matrices_; }
  std::span<const MatrixTile> tiles() const { return tiles_; }

 private:
  void add_tiles(const MatrixPair& m);

  std::vector<MatrixPair> matrices_;
  std::vector<MatrixTile> tiles_;
};

/// Quantises, or dequantises, the matrices of a table on a GPU: byte for byte what quantise() and
/// dequantise_rows() of transform/quantise.h give. Its tables stay on the device: made once, run
/// repeatedly.
class MatrixRunner {
 public:
  enum class Direction { quantise, dequantise };
  /// Copies the table to the device and waits for that. `most_blocks` as TileRunner::make().
  /// Errors: those of Device::kernel(); memory that is short.
  static Result<MatrixRunner> make(std::shared_ptr<const Device> device, const MatrixTable& table,
                                   Direction direction, int most_blocks = 0);

  /// Gives a stream of the device the work: one launch, and two more if matrices need their largest
  /// magnitudes first. Neither waits nor allocates. The stream must run the work before this object
  /// goes. Errors: the driver's.
  Result<> launch(const Stream& stream) const;

 private:
  Result<> launch(const Stream& stream, Function kernel, const MatrixLaunch& work) const;

  std::shared_ptr<const Device> device_;
  Function kernel_ = nullptr, amax_kernel_ = nullptr;
  Buffer tables_, amaxes_;
  MatrixLaunch all_, with_amax_;
  unsigned most_blocks_ = 0;
};

}  // namespace reshard::cuda
