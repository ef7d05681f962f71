// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/program/matrix_parts.h"

namespace reshard {

struct SideConversion;

inline constexpr std::size_t kMatrixParts = 4;  ///< all but the amax.

/// Bytes of one part of some rows, in a local tensor: those from the first to the last, which may
/// include other columns in between.
struct PartRows {
  SlotId slot{-1};   ///< values: of QuantisedLayout::values; others: of `stored`. -1: none.
  Index offset = 0;  ///< of the first row. Bytes.
  Index bytes = 0;   ///< from the first to the end of the last row.
  Index row = 0, stride = 0;  ///< bytes of a row, and from one row to the next.
};

/// Some rows of a matrix that is converted between plain values and data with scales: whole blocks,
/// so they are converted at once and alone, except for the amax that some formats need.
struct ConvertedRows {
  std::size_t matrix = 0;                        ///< rows of one matrix are adjacent in the list.
  Index rows = 0, cols = 0, begin = 0, end = 0;  ///< of the whole matrix; the range. Elements.
  std::array<PartRows, kMatrixParts> parts;
  QuantFormat format;
  const PartRows& part(MatrixPart p) const { return parts[static_cast<std::size_t>(p)]; }
};

/// The rows that a side converts of all matrices that a rank holds of it, about `unit_bytes` bytes
/// of values at a time. A pure function of its arguments. Errors: those of check_quant_format() and
/// of delivered_areas().
Result<std::vector<ConvertedRows>> converted_rows(const SideConversion& side, Rank rank,
                                                  Index unit_bytes);

}  // namespace reshard
