// SPDX-License-Identifier: Apache-2.0
// The tables that the kernel of fingerprints reads. Plain data: GPU and host compilers lay them out
// alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/cuda/tiles/tiles.h"
#include "reshard/transform/fingerprint_arithmetic.h"

namespace reshard::cuda {

/// How threads read a piece.
enum class ReadBy : std::uint8_t {
  // Along its rows:
  bytes1,
  bytes2,
  bytes4,
  bytes8,
  bytes16,
  value,    ///< single values, which are converted.
  values4,  ///< four values whose dtype changes, but which no map changes.
  // Across its rows, each element at its own address:
  element,
  elements4,  ///< of four rows that are adjacent in memory: elements of 1, 2 or 4 bytes.
};

/// Rows that a thread reads at once. Slices of pieces that are read by elements4 begin at
/// multiples.
inline constexpr std::uint32_t kRowsAtOnce = 4;
/// The most rows of a slice.
inline constexpr std::uint32_t kSliceRows = 512;
/// The most columns of a piece that is read across its rows. Elements; a multiple of kUnitColumns,
/// those that a thread reads before it takes others.
inline constexpr std::uint32_t kPieceColumns = 64, kUnitColumns = 16;

/// Some columns of some parts of a tensor's rows ("part": see transform/fingerprint.h). Bytes of
/// columns are those of the form that is fingerprinted, strides are in bytes of memory.
struct FingerprintPiece {
  const std::byte* src = nullptr;  ///< the first column of its first row.
  std::uint64_t part = 0;          ///< the number of the first row's part.
  std::uint64_t key[2] = {};       ///< key_l.
  std::uint64_t ones[2] = {};      ///< fingerprint_ones() of its columns.
  std::int64_t column_stride = 0;  ///< between elements, if read across rows.
  Divisor columns;                 ///< what threads read at once, in a row; or elements.
  std::uint32_t begin = 0;         ///< of the columns, in their part.
  /// Its rows: num_loops loops, outermost first, whose dst_stride counts parts.
  std::uint32_t first_loop = 0;
  std::uint32_t sum = 0;  ///< the sum that it belongs to.
  std::uint8_t num_loops = 0;
  ReadBy read_by = ReadBy::bytes1;
  std::uint8_t element_bytes = 1, log2_alignment = 0;  ///< in memory, if read across rows.
  Conversion conversion;
};

/// Rows [first, first + count) of a piece.
struct FingerprintSlice {
  std::uint32_t piece = 0, first = 0, count = 0;
};

/// A unit of work of one thread block: slices [first, end).
struct FingerprintTile {
  std::uint32_t first = 0, end = 0;
};

/// B_l of the definition, for both lanes.
struct alignas(8) WordWeights {
  std::uint32_t lane[2] = {};
};
/// The table of weights has some more than a part has words, all 0, which what is read as a whole
/// vector multiplies with zeros.
inline constexpr std::size_t kNumWeights = kPartWords + 4;

/// The work of one launch: all tiles, in any order. All pointers are to the GPU's memory.
struct FingerprintLaunch {
  const FingerprintTile* tiles = nullptr;
  const FingerprintSlice* slices = nullptr;
  const FingerprintPiece* pieces = nullptr;
  const CopyLoop* loops = nullptr;
  const WordWeights* weights = nullptr;  ///< kNumWeights.
  std::uint64_t* sums = nullptr;         ///< two lanes each; the kernel adds to them.
  std::uint32_t num_tiles = 0;
};

/// Without an initial value, as shared memory needs it.
struct LaneSums {
  std::uint64_t lane[2];
};

/// The shared memory of a thread block.
struct FingerprintShared {
  struct Row {
    std::int64_t offset;      ///< from the piece's address. Bytes.
    std::uint64_t weight[2];  ///< A_l of its part.
  };
  Row rows[kSliceRows];              ///< of the slice.
  LaneSums sums[kTileThreads / 32];  ///< one a warp.
};

/// The kernel, whose only parameter is a FingerprintLaunch.
inline constexpr const char* kFingerprintKernel = "reshard_fingerprint";

}  // namespace reshard::cuda
