// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/program/program.h"

namespace reshard::check {

/// `rows` runs of `row` bytes, `stride` bytes apart.
struct MatrixRows {
  Place at;
  Index rows = 0, row = 0, stride = 0;
};

/// One part of a matrix that an op reads or writes.
struct PartUse {
  const char* name = "";  ///< "values", "data", "scales", "factor" or "amax".
  bool writes = false;
  MatrixRows rows;
};

/// What an op reads and writes for a matrix, reads first. @pre check_quant_format() holds, and
/// 0 <= begin <= end <= rows
std::vector<PartUse> parts_of(const ProgramMatrix& matrix, ProgramOp::Kind kind);

/// True if the rows can be converted alone: they begin at a row of scales and, to quantise, end at
/// one or at the last row. @pre as for parts_of()
bool has_whole_blocks(const ProgramMatrix& matrix, ProgramOp::Kind kind);

}  // namespace reshard::check
