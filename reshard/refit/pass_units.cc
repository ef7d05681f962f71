// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "reshard/refit/pass.h"

namespace reshard {
namespace {

constexpr Index kLine = 64;
/// Rows of scales in a tile of swizzled ones.
constexpr Index kTileRows = 128;

Index lines(Index bytes) { return (bytes + kLine - 1) / kLine * kLine; }
Index size_of(DType dtype, Index elements) { return elements * bits(dtype) / 8; }

/// Bytes of n rows, `stride` apart, of which the last one has `last` bytes.
Index span_of(Index n, Index stride, Index last) { return n == 0 ? 0 : (n - 1) * stride + last; }

/// Rows of scales, or of tiles of them, that some rows of a matrix have.
struct ScaleSpan {
  Index offset = 0, rows = 0, stride = 0, row_bytes = 0;
  Index bytes() const { return span_of(rows, stride, row_bytes); }
};

ScaleSpan scale_span(const QuantMatrix& m, Index begin, Index end) {
  const bool tiled = m.format.order == ScaleOrder::swizzled;
  const Index step = tiled ? kTileRows : m.format.block_rows;
  ScaleSpan out;
  out.row_bytes = tiled ? scale_bytes(m.format, kTileRows, m.cols)
                        : size_of(m.format.scale, scale_cols(m.format, m.cols));
  out.stride = tiled ? out.row_bytes : m.scale_row_bytes;
  const Index first = step == 0 ? 0 : begin / step;
  out.rows = step == 0 ? 1 : (end + step - 1) / step - first;
  out.offset = first * out.stride;
  return out;
}

bool equal_rows(const std::byte* a, const std::byte* b, Index rows, Index stride, Index bytes) {
  for (Index r = 0; r < rows; ++r)
    if (std::memcmp(a + r * stride, b + r * stride, static_cast<std::size_t>(bytes)) != 0)
      return false;
  return true;
}

}  // namespace

RowPlaces Pass::places(std::size_t unit) const {
  const Unit& u = units_[unit];
  const Matrix& m = matrices_[u.matrix];
  return {m.values.data + u.begin * m.values.row_bytes,
          m.stored.data + u.begin * m.stored.row_bytes,
          m.stored.scales + scale_span(m.stored, u.begin, u.end).offset, m.stored.factor};
}

RowExtents Pass::extents(std::size_t unit) const {
  const Unit& u = units_[unit];
  const Matrix& m = matrices_[u.matrix];
  const Index n = u.end - u.begin, cols = m.values.cols;
  const auto rows = [&](DType dtype, Index stride) -> RowExtents::Part {
    const Index row = size_of(dtype, cols);
    return {span_of(n, stride, row), row, stride};
  };
  const ScaleSpan scales = scale_span(m.stored, u.begin, u.end);
  RowExtents out{rows(m.values.dtype, m.values.row_bytes),
                 rows(m.stored.format.data, m.stored.row_bytes),
                 {scales.bytes(), scales.row_bytes, scales.stride},
                 {}};
  if (m.stored.factor != nullptr) out.factor = {4, 4, 4};
  return out;
}

void Pass::add_amax(std::size_t unit, const RowPlaces& at) {
  Unit& u = units_[unit];
  FloatMatrix rows = matrices_[u.matrix].values;
  rows.data = at.values;
  rows.rows = u.end - u.begin;
  u.amax = amax(rows);
}

void Pass::end_amax() {
  for (std::size_t m = 0; m < matrices_.size(); ++m) end_amax_of(m);
}

void Pass::end_amax_of(std::size_t matrix) {
  Matrix& m = matrices_[matrix];
  m.amax = 0;
  for (std::size_t u = m.first; u < m.end; ++u)
    m.amax = std::isnan(m.amax) || units_[u].amax <= m.amax ? m.amax : units_[u].amax;
}

void Pass::convert(std::size_t unit, const RowPlaces& at) const {
  const Unit& u = units_[unit];
  const Matrix& m = matrices_[u.matrix];
  // The kernels count rows from the matrix' first.
  FloatMatrix values = m.values;
  QuantMatrix stored = m.stored;
  values.data = at.values - u.begin * m.values.row_bytes;
  stored.data = at.data - u.begin * m.stored.row_bytes;
  stored.scales = at.scales - scale_span(m.stored, u.begin, u.end).offset;
  stored.factor = at.factor;
  if (to_ == To::quantised) {
    quantise_rows(values, stored, u.begin, u.end, m.amax);
  } else {
    dequantise_rows(stored, values, u.begin, u.end);
  }
}

Index Pass::scratch_bytes() const {
  Index most = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const RowExtents n = extents(i);
    most = std::max(most, to_ == To::values ? n.values.bytes
                                            : lines(n.data.bytes) + lines(n.scales.bytes) + kLine);
  }
  return most;
}

bool Pass::is_converted(std::size_t unit, const RowPlaces& at, std::byte* scratch) const {
  const RowExtents n = extents(unit);
  RowPlaces made = at;
  if (to_ == To::values) {
    made.values = scratch;
  } else {
    made.data = scratch;
    made.scales = made.data + lines(n.data.bytes);
    if (n.factor.bytes > 0) made.factor = made.scales + lines(n.scales.bytes);
  }
  convert(unit, made);
  return equal(unit, made, places(unit));
}

/// Whether what a conversion of the unit writes is the same in two places.
bool Pass::equal(std::size_t unit, const RowPlaces& a, const RowPlaces& b) const {
  const Unit& u = units_[unit];
  const Matrix& m = matrices_[u.matrix];
  const Index n = u.end - u.begin, cols = m.values.cols;
  if (to_ == To::values)
    return equal_rows(a.values, b.values, n, m.values.row_bytes, size_of(m.values.dtype, cols));
  if (!equal_rows(a.data, b.data, n, m.stored.row_bytes, size_of(m.stored.format.data, cols)))
    return false;
  // The rows with the first one write the scale of a matrix that is one block, and the factor.
  const bool is_first = u.begin == 0;
  const ScaleSpan scales = scale_span(m.stored, u.begin, u.end);
  if ((is_first || m.stored.format.block_rows > 0) &&
      !equal_rows(a.scales, b.scales, scales.rows, scales.stride, scales.row_bytes))
    return false;
  return !is_first || m.stored.factor == nullptr || std::memcmp(a.factor, b.factor, 4) == 0;
}

const std::string& Pass::name(std::size_t unit) const {
  return *matrices_[units_[unit].matrix].name;
}

}  // namespace reshard
