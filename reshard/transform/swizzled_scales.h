// SPDX-License-Identifier: Apache-2.0
// The order of swizzled scales: tiles of 128 x 4, as block-scaled matrix products on Blackwell read
// them (cuBLASLt).
#pragma once

#include "reshard/index/interval.h"
#include "reshard/transform/float_bits.h"

namespace reshard {

/// Size of a tile of swizzled scales: rows and columns of scales, and bytes.
inline constexpr Index kScaleTileRows = 128, kScaleTileCols = 4, kScaleTileBytes = 512;

/// `rows` rounded up to whole tiles.
RESHARD_HOST_DEVICE constexpr Index scale_tile_rows(Index rows) {
  return (rows + kScaleTileRows - 1) / kScaleTileRows * kScaleTileRows;
}
RESHARD_HOST_DEVICE constexpr Index scale_tile_cols(Index cols) {
  return (cols + kScaleTileCols - 1) / kScaleTileCols * kScaleTileCols;
}

/// The offset of a swizzled scale in bytes. `cols`: the matrix' number of scales across.
RESHARD_HOST_DEVICE constexpr Index swizzled_scale_offset(Index row, Index col, Index cols) {
  const Index tile =
      row / kScaleTileRows * (scale_tile_cols(cols) / kScaleTileCols) + col / kScaleTileCols;
  const Index r = row % kScaleTileRows;
  return tile * kScaleTileBytes + r % 32 * 16 + r / 32 * 4 + col % kScaleTileCols;
}

}  // namespace reshard
