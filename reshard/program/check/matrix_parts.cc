// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/check/matrix_parts.h"

#include "reshard/transform/quantise.h"

namespace reshard::check {
namespace {

/// Rows of a tile of swizzled scales.
constexpr Index kScaleTileRows = 128;

Index size_of(DType dtype, Index elements) { return elements * bits(dtype) / 8; }

/// Rows of the matrix for each row of scales; 0: all.
Index rows_per_scale(const QuantFormat& format) {
  return format.order == ScaleOrder::swizzled ? kScaleTileRows : format.block_rows;
}

bool is_one_block(const QuantFormat& format) {
  return format.block_rows == 0 && format.block_cols == 0;
}

MatrixRows scales_of(const ProgramMatrix& m, ProgramOp::Kind kind) {
  const bool swizzled = m.format.order == ScaleOrder::swizzled;
  const Index step = rows_per_scale(m.format);
  Index rows = step == 0 ? 1 : (m.end + step - 1) / step - m.begin / step;
  // The range with row 0 writes the only scale.
  if (is_one_block(m.format) && kind == ProgramOp::Kind::quantise && m.begin > 0) rows = 0;
  if (m.begin == m.end) rows = 0;
  const Index row = swizzled ? scale_bytes(m.format, kScaleTileRows, m.cols)
                             : size_of(m.format.scale, scale_cols(m.format, m.cols));
  return {m.scales, rows, row, m.scales_row};
}

}  // namespace

std::vector<PartUse> parts_of(const ProgramMatrix& m, ProgramOp::Kind kind) {
  const bool quantises = kind == ProgramOp::Kind::quantise;
  const Index n = m.end - m.begin;
  const MatrixRows values{m.values, n, size_of(m.values_dtype, m.cols), m.values_row};
  const MatrixRows amax{m.amax, 1, 4, 4};
  if (kind == ProgramOp::Kind::amax) return {{"values", false, values}, {"amax", true, amax}};
  std::vector<PartUse> out;
  if (quantises) out.push_back({"values", false, values});
  if (quantises && needs_amax(m.format)) out.push_back({"amax", false, amax});
  out.push_back({"data", quantises, {m.data, n, size_of(m.format.data, m.cols), m.data_row}});
  out.push_back({"scales", quantises, scales_of(m, kind)});
  if (m.format.tensor_factor && (!quantises || m.begin == 0))
    out.push_back({"factor", quantises, {m.factor, 1, 4, 4}});
  if (!quantises) out.push_back({"values", true, values});
  return out;
}

bool has_whole_blocks(const ProgramMatrix& m, ProgramOp::Kind kind) {
  if (kind == ProgramOp::Kind::amax || is_one_block(m.format)) return true;
  const Index step = rows_per_scale(m.format);
  if (step == 0) return m.begin == 0 && m.end == m.rows;
  return m.begin % step == 0 &&
         (kind != ProgramOp::Kind::quantise || m.end == m.rows || m.end % step == 0);
}

}  // namespace reshard::check
