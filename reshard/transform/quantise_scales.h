// SPDX-License-Identifier: Apache-2.0
// Where scales lie and how they are made, for the kernels behind quantise.h.
#pragma once

#include <cstring>
#include <span>

#include "reshard/transform/quantise.h"
#include "reshard/transform/quantise_arithmetic.h"

namespace reshard::detail {

/// Tiles of swizzled scales: rows and columns of scales, and their bytes.
inline constexpr Index kTileRows = 128, kTileCols = 4, kTileBytes = 512;

/// `rows` rounded up to whole tiles.
constexpr Index tile_rows(Index rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }
constexpr Index tile_cols(Index cols) { return (cols + kTileCols - 1) / kTileCols * kTileCols; }

/// The byte of a swizzled scale, in a matrix of `cols` scales across.
constexpr Index swizzled_place(Index row, Index col, Index cols) {
  const Index tile = row / kTileRows * (tile_cols(cols) / kTileCols) + col / kTileCols;
  const Index r = row % kTileRows;
  return tile * kTileBytes + r % 32 * 16 + r / 32 * 4 + col % kTileCols;
}

/// @pre check_quant_format() holds
constexpr ScaleKind scale_kind(const QuantFormat& format) {
  if (format.scale == DType::f8_e4m3) return ScaleKind::e4m3;
  const bool bytes = format.scale == DType::f8_e8m0;
  switch (format.rule) {
    case ScaleRule::exact: break;
    case ScaleRule::up: return bytes ? ScaleKind::e8m0_up : ScaleKind::f32_up;
    case ScaleRule::floor: return bytes ? ScaleKind::e8m0_floor : ScaleKind::f32_floor;
  }
  return ScaleKind::f32_exact;
}

/// Reads and writes scales of a matrix that is borrowed, as bytes or bits of a float.
class ScalePlaces {
 public:
  explicit ScalePlaces(const QuantMatrix& matrix)
      : scales_(matrix.scales),
        row_bytes_(matrix.scale_row_bytes),
        cols_(scale_cols(matrix.format, matrix.cols)),
        width_(matrix.format.scale == DType::f32 ? 4 : 1),
        swizzled_(matrix.format.order == ScaleOrder::swizzled) {}

  std::uint32_t read(Index row, Index col) const {
    const std::byte* const at = scales_ + place(row, col);
    if (width_ == 1) return std::to_integer<std::uint32_t>(*at);
    std::uint32_t bits = 0;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
  }

  /// The scales of a row's columns from `col` on.
  void write(Index row, Index col, std::span<const std::uint32_t> stored) const {
    if (width_ == 4) {
      std::memcpy(scales_ + place(row, col), stored.data(), stored.size_bytes());
    } else if (!swizzled_) {
      std::byte* const at = scales_ + place(row, col);
      for (std::size_t i = 0; i < stored.size(); ++i) at[i] = static_cast<std::byte>(stored[i]);
    } else {
      std::byte* const at = scales_ + place(row, 0);
      for (const std::uint32_t scale : stored) {
        at[col / kTileCols * kTileBytes + col % kTileCols] = static_cast<std::byte>(scale);
        ++col;
      }
    }
  }

 private:
  Index place(Index row, Index col) const {
    return swizzled_ ? swizzled_place(row, col, cols_) : row * row_bytes_ + col * width_;
  }

  std::byte* scales_;
  Index row_bytes_, cols_, width_;
  bool swizzled_;
};

/// Writes zeros to the places of swizzled tiles in rows [begin, end) of scales that no block has.
void write_padding(const QuantMatrix& matrix, Index begin, Index end);

}  // namespace reshard::detail
