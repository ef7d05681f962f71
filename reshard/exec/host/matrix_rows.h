// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/exec/conversion_verifier.h"
#include "reshard/program/program.h"

namespace reshard::host {

/// Quantises or dequantises the rows of a matrix at these places. `amax`: of the whole matrix, if
/// its format needs it to quantise.
void convert_rows(ProgramOp::Kind kind, const ProgramMatrix& rows, const RowPlaces& at, float amax);

/// Bytes that converted_equal() needs for these rows.
Index scratch_to_compare(ProgramOp::Kind kind, const ProgramMatrix& rows);

/// Converts the rows at `at` in scratch. True if that gives what the output at `at` holds.
bool converted_equal(ProgramOp::Kind kind, const ProgramMatrix& rows, const RowPlaces& at,
                     float amax, std::byte* scratch);

}  // namespace reshard::host
