// SPDX-License-Identifier: Apache-2.0
// Access to the scales of a matrix, for the kernels behind quantise.h.
#pragma once

#include <array>
#include <cstring>
#include <span>

#include "reshard/transform/quantise.h"
#include "reshard/transform/scale_kind.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard::kernels {

/// The multipliers of codes for one-byte scales: scale_to_float() times or divided by the factor.
/// Cheap to construct.
class DecodingScales {
 public:
  DecodingScales(ScaleKind kind, float factor, bool divides)
      : of_bytes_(kind == ScaleKind::e4m3 ? kE4m3 : kE8m0), factor_(factor), divides_(divides) {}

  float operator[](std::byte stored) const {
    const float scale = of_bytes_[std::to_integer<std::size_t>(stored)];
    return divides_ ? scale / factor_ : scale * factor_;
  }

 private:
  using Table = std::array<float, 256>;

  static constexpr Table table(ScaleKind kind) {
    Table values{};
    for (std::uint32_t byte = 0; byte < values.size(); ++byte)
      values[byte] = scale_to_float(kind, byte);
    return values;
  }
  static const Table kE8m0, kE4m3;

  const Table& of_bytes_;
  float factor_;
  bool divides_;
};

/// Reads and writes the scales of a borrowed matrix: bytes, numbers of 16 bits, or floats.
class ScalePlaces {
 public:
  explicit ScalePlaces(const QuantMatrix& matrix)
      : scales_(matrix.scales),
        row_bytes_(matrix.scale_row_bytes),
        cols_(scale_cols(matrix.format, matrix.cols)),
        width_(bits(matrix.format.scale) / 8),
        kind_(scale_kind(matrix.format)),
        swizzled_(matrix.format.order == ScaleOrder::swizzled) {}

  /// Reads the multipliers of a row's blocks, starting at block `col`.
  void read(Index row, Index col, const DecodingScales& decoding, std::span<float> scales) const {
    const std::byte* at = scales_ + place(row, swizzled_ ? 0 : col);
    if (width_ == 4) {
      std::memcpy(scales.data(), at, scales.size_bytes());
    } else if (width_ == 2) {
      for (float& scale : scales) {
        std::uint16_t stored = 0;
        std::memcpy(&stored, at, sizeof stored);
        scale = scale_to_float(kind_, stored);
        at += sizeof stored;
      }
    } else if (!swizzled_) {
      for (float& scale : scales) scale = decoding[*at++];
    } else {
      for (float& scale : scales) {
        scale = decoding[at[col / kScaleTileCols * kScaleTileBytes + col % kScaleTileCols]];
        ++col;
      }
    }
  }

  /// Writes the scales of a row, starting at column `col`.
  void write(Index row, Index col, std::span<const std::uint32_t> stored) const {
    if (width_ == 4) {
      std::memcpy(scales_ + place(row, col), stored.data(), stored.size_bytes());
    } else if (width_ == 2) {
      std::byte* at = scales_ + place(row, col);
      for (const std::uint32_t scale : stored) {
        const auto half = static_cast<std::uint16_t>(scale);
        std::memcpy(at, &half, sizeof half);
        at += sizeof half;
      }
    } else if (!swizzled_) {
      std::byte* const at = scales_ + place(row, col);
      for (std::size_t i = 0; i < stored.size(); ++i) at[i] = static_cast<std::byte>(stored[i]);
    } else {
      std::byte* const at = scales_ + place(row, 0);
      for (const std::uint32_t scale : stored) {
        at[col / kScaleTileCols * kScaleTileBytes + col % kScaleTileCols] =
            static_cast<std::byte>(scale);
        ++col;
      }
    }
  }

 private:
  Index place(Index row, Index col) const {
    return swizzled_ ? swizzled_scale_offset(row, col, cols_) : row * row_bytes_ + col * width_;
  }

  std::byte* scales_;
  Index row_bytes_, cols_, width_;
  ScaleKind kind_;
  bool swizzled_;
};

/// Writes zeros to the padding of swizzled tiles in rows [begin, end) of scales.
void write_padding(const QuantMatrix& matrix, Index begin, Index end);

}  // namespace reshard::kernels
