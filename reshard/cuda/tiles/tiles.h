// SPDX-License-Identifier: Apache-2.0
// The tables that the tile kernel reads. Plain data: GPU and host compilers lay them out alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/base/value_map.h"

namespace reshard::cuda {

/// Divides numbers below 2^31 by a constant without a division: (n * multiplier / 2^32 + n) >>
/// shift.
struct Divisor {
  std::uint32_t divisor = 1, multiplier = 0, shift = 0;
};
/// @pre 0 < divisor < 2^31
constexpr Divisor divisor(std::uint32_t d) {
  std::uint32_t shift = 0;
  while ((std::uint64_t{1} << shift) < d) ++shift;
  const std::uint64_t over = (std::uint64_t{1} << shift) - d;
  return {d, static_cast<std::uint32_t>((over << 32) / d + 1), shift};
}

/// A loop of a copy. Strides in bytes.
struct CopyLoop {
  Divisor count;
  std::int64_t src_stride = 0, dst_stride = 0;
};

/// A strided copy of vectors of 2^log2_width bytes, to which all its addresses and strides are
/// aligned; or of values that are converted on the way, in vectors of 2^log2_width values: of one,
/// or of eight whose addresses are multiples of 16 bytes.
struct CopyPiece {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  Divisor run;                   ///< vectors of a run.
  std::uint32_t first_loop = 0;  ///< of num_loops entries in `loops`, outermost first.
  std::uint8_t num_loops = 0;
  std::uint8_t log2_width = 0;
  bool converts = false;
  Conversion conversion;
};

/// Part of a piece: vectors [first, first + count).
struct CopySlice {
  std::uint32_t piece = 0, first = 0, count = 0;
};

/// A unit of work of one thread block: slices [first, end).
struct CopyTile {
  std::uint32_t first = 0, end = 0;
};

/// The work of one launch: tiles [first_tile, end_tile) of these tables, in any order. All pointers
/// are to the GPU's memory.
struct TileLaunch {
  const CopyTile* tiles = nullptr;
  const CopySlice* slices = nullptr;
  const CopyPiece* pieces = nullptr;
  const CopyLoop* loops = nullptr;
  std::uint32_t first_tile = 0, end_tile = 0;
};

/// A dtype of values in the names of kernels. @pre is_convertible(dtype)
constexpr const char* kernel_suffix(DType dtype) {
  return dtype == DType::bf16 ? "bf16" : dtype == DType::f16 ? "f16" : "f32";
}

/// Threads of a block, blocks that a multiprocessor can run at a time, and the name of the kernel,
/// whose only parameter is a TileLaunch.
inline constexpr unsigned kTileThreads = 256, kTileBlocks = 4;
inline constexpr const char* kTileKernel = "reshard_run_tiles";
/// The same for tiles of pieces that convert value by value. By eight values, the name goes on with
/// both dtypes, "_f32_bf16" (TileTable::Conversions).
inline constexpr const char* kConvertKernel = "reshard_convert";

}  // namespace reshard::cuda
