// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/matrix_parts.h"

#include "reshard/transform/quantise.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard {
namespace {

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

const char* name(MatrixPart part) {
  switch (part) {
    case MatrixPart::values: return "values";
    case MatrixPart::data: return "data";
    case MatrixPart::scales: return "scales";
    case MatrixPart::factor: return "factor";
    case MatrixPart::amax: return "amax";
  }
  return "?";
}

Index rows_per_scale(const QuantFormat& format) {
  return format.order == ScaleOrder::swizzled ? kScaleTileRows : format.block_rows;
}

std::vector<PartUse> parts_of(const ProgramMatrix& m, ProgramOp::Kind kind) {
  const bool quantises = kind == ProgramOp::Kind::quantise;
  const Index n = m.end - m.begin;
  const MatrixRows values{m.values, n, size_of(m.values_dtype, m.cols), m.values_row};
  const MatrixRows amax{m.amax, 1, 4, 4};
  if (kind == ProgramOp::Kind::amax)
    return {{MatrixPart::values, false, values}, {MatrixPart::amax, true, amax}};
  std::vector<PartUse> out;
  if (quantises) out.push_back({MatrixPart::values, false, values});
  if (quantises && needs_amax(m.format)) out.push_back({MatrixPart::amax, false, amax});
  out.push_back(
      {MatrixPart::data, quantises, {m.data, n, size_of(m.format.data, m.cols), m.data_row}});
  out.push_back({MatrixPart::scales, quantises, scales_of(m, kind)});
  if (m.format.tensor_factor && (!quantises || m.begin == 0))
    out.push_back({MatrixPart::factor, quantises, {m.factor, 1, 4, 4}});
  if (!quantises) out.push_back({MatrixPart::values, true, values});
  return out;
}

bool has_whole_blocks(const ProgramMatrix& m, ProgramOp::Kind kind) {
  if (kind == ProgramOp::Kind::amax || is_one_block(m.format)) return true;
  const Index step = rows_per_scale(m.format);
  if (step == 0) return m.begin == 0 && m.end == m.rows;
  return m.begin % step == 0 &&
         (kind != ProgramOp::Kind::quantise || m.end == m.rows || m.end % step == 0);
}

}  // namespace reshard
