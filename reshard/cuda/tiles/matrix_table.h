// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reshard/cuda/tiles/matrix_tiles.h"
#include "reshard/transform/quantise.h"

namespace reshard::cuda {

/// The work of kernels on rows of matrices: write the largest magnitude of their values; quantise
/// values to data and scales; dequantise data and scales to values.
enum class MatrixWork : std::uint8_t { amax, quantise, dequantise };

/// The kernel that does this work on tiles of such a matrix.
std::string kernel_name(MatrixWork work, const MatrixPair& matrix);

/// Rows [begin, begin + values.rows) of a matrix. A GPU reaches all addresses, which are those of
/// row `begin`; of the scales: of the row of blocks, or of swizzled scale tiles, that begins there
/// (a matrix of a single block: its scale).
struct MatrixSlice {
  FloatMatrix values;
  QuantMatrix stored;         ///< of as many rows and columns; not used to find an amax.
  Index rows = 0, begin = 0;  ///< of the whole matrix, in elements; the first of the slice.
  /// One f32, also in pinned host memory: MatrixWork::amax writes it for the slice's values,
  /// quantising reads that of the whole matrix if needs_amax(stored.format). Else unused.
  float* amax = nullptr;
};

/// Collects rows of matrices for one kind of work, and cuts them into tiles for thread blocks.
/// Slices of one level may run in any order, and a level runs after the one before it.
class MatrixTable {
 public:
  explicit MatrixTable(MatrixWork work) : work_(work) {}

  /// Adds a slice to the level. Its bytes will be, and no others are written:
  ///   amax        those of amax(values), 0 if there are none; which NaN is not defined
  ///   quantise    those of quantise_rows() for these rows, whose first slice also writes the
  ///               factor and the scale of a single block, whose last one the padding below
  ///   dequantise  those of dequantise_rows()
  /// Errors: those of check_quant_format(); `invalid_argument` for rows outside the matrix, that do
  /// not begin and (to quantise) end at a row of blocks or of scale tiles, and for an amax that is
  /// missing; `unsupported` if addresses and rows are not aligned to their elements, or if a side
  /// or a block has 2^31 elements.
  Result<> add(const MatrixSlice& slice);
  /// Ends the level, which may be empty: later slices run after all until here.
  void end_level();

  MatrixWork work() const { return work_; }
  struct Level {
    std::uint32_t first_launch = 0, end_launch = 0;  ///< of launches().
    std::uint32_t first_amax = 0, end_amax = 0;      ///< of amaxes().
  };
  /// As many as end_level() was called.
  std::span<const Level> levels() const { return levels_; }
  std::span<const MatrixPair> matrices() const { return matrices_; }
  std::span<const MatrixTile> tiles() const { return tiles_; }
  /// Tiles of a level that one kernel takes.
  struct Launch {
    std::string kernel;
    std::uint32_t first_tile = 0, end_tile = 0;  ///< of tiles().
  };
  std::span<const Launch> launches() const { return launches_; }
  /// The tiles whose largest magnitude is one slice's amax.
  struct Amax {
    std::uint32_t first_tile = 0, end_tile = 0;
    float* to = nullptr;
  };
  std::span<const Amax> amaxes() const { return amaxes_; }

 private:
  void add_values(const MatrixSlice& slice);
  void add_stored(const MatrixSlice& slice);
  void add_tiles(const MatrixPair& m);
  void add_launches(std::uint32_t first_tile);

  MatrixWork work_;
  std::vector<Level> levels_;
  std::vector<MatrixPair> matrices_;
  std::vector<MatrixTile> tiles_;
  std::vector<Launch> launches_;
  std::vector<Amax> amaxes_;
};

/// Collects maxima of floats that a GPU reaches. Those of one level run in any order.
class MaximumTable {
 public:
  /// Adds: writes the largest of `count` floats at `from`, at least 0, to `to`; NaN if any is NaN,
  /// which one is not defined. Errors: `invalid_argument` for a negative count; `unsupported` for
  /// 2^31 floats, and for addresses that are not aligned.
  Result<> add(const float* from, Index count, float* to);
  /// Ends the level, which may be empty: later maxima run after all until here.
  void end_level();

  struct Level {
    std::uint32_t first = 0, end = 0;  ///< of maxima().
  };
  /// As many as end_level() was called.
  std::span<const Level> levels() const { return levels_; }
  std::span<const Maximum> maxima() const { return maxima_; }

 private:
  std::vector<Level> levels_;
  std::vector<Maximum> maxima_;
};

}  // namespace reshard::cuda
