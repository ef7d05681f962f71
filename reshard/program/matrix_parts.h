// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/program/program.h"

namespace reshard {

/// The parts of a quantised matrix. The amax is of a whole matrix.
enum class MatrixPart : std::uint8_t { values, data, scales, factor, amax };
const char* name(MatrixPart part);

/// Rows of a matrix for each row of scales, or of scale tiles; 0: all.
Index rows_per_scale(const QuantFormat& format);

/// `rows` runs of `row` bytes, `stride` bytes apart.
struct MatrixRows {
  Place at;
  Index rows = 0, row = 0, stride = 0;
  /// From the first to the end of the last.
  Index bytes() const { return rows == 0 ? 0 : (rows - 1) * stride + row; }
};

/// One part of a matrix that an op reads or writes.
struct PartUse {
  MatrixPart part;
  bool writes = false;
  MatrixRows rows;
};

/// The parts of a matrix that an op reads and writes, reads first. @pre check_quant_format() holds,
/// and 0 <= begin <= end <= rows
std::vector<PartUse> parts_of(const ProgramMatrix& matrix, ProgramOp::Kind kind);

/// True if the rows can be converted alone: they begin at a row of scales and, to quantise, end at
/// one or at the last row. @pre as for parts_of()
bool has_whole_blocks(const ProgramMatrix& matrix, ProgramOp::Kind kind);

}  // namespace reshard
