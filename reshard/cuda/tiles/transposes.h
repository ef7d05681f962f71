// SPDX-License-Identifier: Apache-2.0
// The tables that the transposing kernel reads. Plain data: GPU and host compilers lay them out
// alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/cuda/tiles/tiles.h"
#include "reshard/transform/float_bits.h"

namespace reshard::cuda {

/// Copies of matrices of elements of 2^log2_width bytes whose columns are contiguous in the target:
/// element (r, c) of a matrix is at r * src_row + c * width in the source and at r * width + c *
/// dst_col in the target. Strides in bytes.
struct TransposePiece {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::int64_t src_row = 0, dst_col = 0;
  std::uint32_t rows = 0, cols = 0;
  std::uint32_t first_loop = 0;  ///< over matrices: num_loops entries in `loops`, outermost first.
  std::uint8_t num_loops = 0;
  std::uint8_t log2_width = 0;
  /// Rows of the source, and columns of the target, are aligned for accesses of kTransposeBytes.
  bool wide_src = false, wide_dst = false;
};

/// A unit of work of one thread block: at most edge x edge elements of one matrix.
struct TransposeTile {
  std::uint32_t piece = 0, matrix = 0, first_row = 0, first_col = 0;
};

/// The work of one launch: tiles [first_tile, end_tile), in any order.
struct TransposeLaunch {
  const TransposeTile* tiles = nullptr;
  const TransposePiece* pieces = nullptr;
  const CopyLoop* loops = nullptr;
  std::uint32_t first_tile = 0, end_tile = 0;
};

/// Bytes of a wide access: several elements of 1, 2 or 4 bytes.
inline constexpr std::uint32_t kTransposeBytes = 8;
/// Elements of 1, 2, 4, 8 or 16 bytes are transposed; wider ones are read in whole sectors anyway.
inline constexpr int kMaxTransposedLog2 = 4;

/// Elements along a side of a tile, by the width of an element: a row of it has at least four
/// sectors of 32 bytes, and the tile at most 32 KiB.
RESHARD_HOST_DEVICE constexpr std::uint32_t transpose_edge(int log2_width) {
  return log2_width <= 1 ? 128 : log2_width == 2 ? 64 : 32;
}
/// Bytes from a row of a tile to the next in shared memory: another bank for each row, or for each
/// two if a thread takes four elements of 2 bytes from adjacent rows.
RESHARD_HOST_DEVICE constexpr std::uint32_t transpose_pitch(int log2_width) {
  const std::uint32_t width = 1U << log2_width;
  return transpose_edge(log2_width) * width + (width == 1 ? 4 : width);
}

/// The shared memory of a thread block.
struct alignas(16) TransposeShared {
  std::byte tile[transpose_pitch(1) * transpose_edge(1)];
};
static_assert(transpose_pitch(0) * transpose_edge(0) <= sizeof(TransposeShared));
static_assert(transpose_pitch(2) * transpose_edge(2) <= sizeof(TransposeShared));
static_assert(transpose_pitch(3) * transpose_edge(3) <= sizeof(TransposeShared));
static_assert(transpose_pitch(4) * transpose_edge(4) <= sizeof(TransposeShared));

/// The kernel, whose only parameter is a TransposeLaunch.
inline constexpr const char* kTransposeKernel = "reshard_transpose";

}  // namespace reshard::cuda
