// SPDX-License-Identifier: Apache-2.0
// The tables that the kernels of quantised matrices read. Plain data: GPU and host compilers lay
// them out alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/base/dtype.h"
#include "reshard/cuda/tiles/tiles.h"
#include "reshard/transform/quantise_arithmetic.h"

namespace reshard::cuda {

/// How a thread block works on a tile. `phases` takes any matrix, value by value or by eight, the
/// others whole vectors of eight or sixteen values. To quantise, by the matrix' blocks of one
/// scale:
/// - `phases`: their maxima are found together, then their scales, then the codes.
/// - `vectors`: rows of 16 to 128 elements, each of a few threads beside each other, which read it
///   once; or all of the matrix, whose largest magnitude is known.
/// - `held`: one block a tile, which the thread block holds in registers.
enum class MatrixWay : std::uint8_t { phases, vectors, held };

/// Rows of a matrix of floats and their quantised form, in memory that the GPU reaches; some fields
/// are only for one or the other work. Row 0 is the first of these rows. Strides in bytes.
struct MatrixPair {
  std::byte *values = nullptr, *data = nullptr, *scales = nullptr;
  float* factor = nullptr;  ///< if has_factor.
  float* amax = nullptr;    ///< the whole matrix' largest magnitude, if needs_amax.
  std::int64_t values_row = 0, data_row = 0, scales_row = 0;
  std::uint32_t rows = 0, cols = 0;  ///< elements.
  /// The rows that have a scale, and those of padding below the matrix' last row.
  std::uint32_t padded_rows = 0;
  std::uint32_t block_rows = 0, block_cols = 0;  ///< elements, not 0 unless there are none.
  std::uint32_t scale_cols = 0;                  ///< blocks across.
  Divisor rows_of_block, cols_of_block;          ///< by the same.
  DType dtype = DType::bf16;                     ///< of the values.
  ScaleKind scale = ScaleKind::e8m0_up;
  CodeKind codes = CodeKind::e4m3;
  std::uint8_t zero_block = 0;
  std::uint8_t scale_width = 1;  ///< bytes: 1, 2 or 4.
  bool swizzled = false, one_block = false, needs_amax = false, has_factor = false,
       factor_divides = false;
  /// The rows begin with the matrix' first, whose thread writes what the matrix has one of.
  bool is_first = false;
  /// Elements that a thread takes at once: 8, if addresses, strides and blocks allow it; else 2 or
  /// 1, which only 8-bit data has.
  std::uint8_t at_once = 1;
  MatrixWay way = MatrixWay::phases;
};

/// A unit of work of one thread block: rows [first_row, end_row), from the first of a block to the
/// last, of the blocks across [first_block, end_block). For MatrixWay::phases at most kTileSlots
/// blocks in all.
struct MatrixTile {
  std::uint32_t matrix = 0, first_row = 0, end_row = 0, first_block = 0, end_block = 0;
};
inline constexpr std::uint32_t kTileSlots = 256;
/// Elements of a tile, about: what a thread block holds in registers, or in the caches of its
/// multiprocessor.
inline constexpr std::uint32_t kTileElements = 16384;

/// The shared memory of a thread block that quantises.
struct MatrixShared {
  float matrix_amax;               ///< of the whole matrix, if needed.
  std::uint32_t amax[kTileSlots];  ///< bits of each block's largest magnitude.
  float by[kTileSlots];            ///< BlockScale::by of each.
};

/// The work of one launch: tiles [first_tile, end_tile), in any order.
struct MatrixLaunch {
  const MatrixPair* matrices = nullptr;
  const MatrixTile* tiles = nullptr;
  float* amaxes = nullptr;  ///< one a tile, which the kernel of largest magnitudes writes.
  std::uint32_t first_tile = 0, end_tile = 0;
};

/// `*to` becomes the largest of `count` floats at `from`.
struct Maximum {
  const float* from = nullptr;
  float* to = nullptr;
  std::uint32_t count = 0;
};

/// The work of one launch: maxima [first, end), in any order.
struct MaximumLaunch {
  const Maximum* maxima = nullptr;
  std::uint32_t first = 0, end = 0;
};

/// The kernels, whose only parameter is a MatrixLaunch: the largest magnitude of each tile; values
/// to data and scales; and back. Those of MatrixWay::phases: of the other ways, the name goes on
/// with way, dtype and codes, "_held_bf16_e4m3" (kernel_name()). The last one's parameter is a
/// MaximumLaunch.
inline constexpr const char *kAmaxKernel = "reshard_amax", *kQuantiseKernel = "reshard_quantise",
                            *kDequantiseKernel = "reshard_dequantise",
                            *kMaximumKernel = "reshard_maximum";

/// Calls KERNEL(dtype, codes) for those of MatrixWay::vectors and of held that there are: those of
/// known formats. Kernels for all pairs would double the image.
// clang-format off: it lays these lists out anew each time.
#define RESHARD_VECTOR_KERNELS(KERNEL) \
  KERNEL(bf16, e4m3) KERNEL(bf16, e2m1) KERNEL(bf16, int4) KERNEL(bf16, int8) KERNEL(bf16, uint8) \
  KERNEL(f16, e4m3) KERNEL(f16, e2m1) \
  KERNEL(f32, e4m3) KERNEL(f32, e2m1)
#define RESHARD_HELD_KERNELS(KERNEL) KERNEL(bf16, e4m3) KERNEL(bf16, int8)
// clang-format on

/// True if there is a kernel of this way for values and codes.
constexpr bool has_kernel(MatrixWay way, DType values, CodeKind codes) {
  switch (way) {
    case MatrixWay::phases: return true;
#define RESHARD_IS(D, C) || (values == DType::D && codes == CodeKind::C)
    case MatrixWay::vectors: return false RESHARD_VECTOR_KERNELS(RESHARD_IS);
    case MatrixWay::held: return false RESHARD_HELD_KERNELS(RESHARD_IS);
#undef RESHARD_IS
  }
  return false;
}

}  // namespace reshard::cuda
