// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/matrix_rows.h"

#include <cstring>

#include "reshard/memory/cache_line.h"
#include "reshard/program/matrix_parts.h"
#include "reshard/transform/quantise.h"

namespace reshard::host {
namespace {

std::byte*& place_of(RowPlaces& at, MatrixPart part) {
  return part == MatrixPart::values ? at.values
         : part == MatrixPart::data ? at.data
                                    : (part == MatrixPart::scales ? at.scales : at.factor);
}

bool equal(const MatrixRows& rows, const std::byte* a, const std::byte* b) {
  for (Index r = 0; r < rows.rows; ++r)
    if (std::memcmp(a + r * rows.stride, b + r * rows.stride, static_cast<std::size_t>(rows.row)) !=
        0)
      return false;
  return true;
}

}  // namespace

void convert_rows(ProgramOp::Kind kind, const ProgramMatrix& m, const RowPlaces& at, float amax) {
  // The kernels take row numbers of the whole matrix.
  const FloatMatrix plain{at.values - m.begin * m.values_row, m.values_dtype, m.rows, m.cols,
                          m.values_row};
  const Index step = rows_per_scale(m.format);
  const Index first_scales = step == 0 ? 0 : m.begin / step * m.scales_row;
  const QuantMatrix stored{m.format,   at.data - m.begin * m.data_row, m.rows,       m.cols,
                           m.data_row, at.scales - first_scales,       m.scales_row, at.factor};
  if (kind == ProgramOp::Kind::dequantise) return dequantise_rows(stored, plain, m.begin, m.end);
  quantise_rows(plain, stored, m.begin, m.end, amax);
}

Index scratch_to_compare(ProgramOp::Kind kind, const ProgramMatrix& rows) {
  Index bytes = 0;
  for (const PartUse& part : parts_of(rows, kind))
    if (part.writes) bytes += whole_lines(part.rows.bytes());
  return bytes;
}

bool converted_equal(ProgramOp::Kind kind, const ProgramMatrix& rows, const RowPlaces& at,
                     float amax, std::byte* scratch) {
  RowPlaces held = at, made = at;
  const std::vector<PartUse> parts = parts_of(rows, kind);
  for (const PartUse& part : parts) {
    if (!part.writes) continue;
    place_of(made, part.part) = scratch;
    scratch += whole_lines(part.rows.bytes());
  }
  convert_rows(kind, rows, made, amax);
  for (const PartUse& part : parts)
    if (part.writes && !equal(part.rows, place_of(held, part.part), place_of(made, part.part)))
      return false;
  return true;
}

}  // namespace reshard::host
