// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace reshard::conversion {
namespace {

/// Rows of a tile of swizzled scales, which threads must not share.
constexpr Index kScaleTileRows = 128;
/// Units between two checks of the group's state.
constexpr std::size_t kLook = 8;

bool is_one_block(const QuantFormat& format) {
  return format.block_rows == 0 && format.block_cols == 0;
}

/// A unit has a multiple of this many rows; 0: all rows.
Index row_step(const QuantFormat& format) {
  if (is_one_block(format)) return 1;
  return format.order == ScaleOrder::swizzled ? kScaleTileRows : format.block_rows;
}

Index size_of(DType dtype, Index elements) { return elements * bits(dtype) / 8; }

tl::unexpected<Error> missing(const RankBuffers& buffers, SlotId slot, Rank me) {
  return fail(Code::invalid_argument,
              fmt::format("{}: no memory for local tensor '{}' of rank {}", buffers.layout().name(),
                          buffers.layout().slot(slot).name, me.value()));
}

/// Bytes from the first of n rows, `stride` apart, to the end of the last, which has `last` bytes.
Index span_of(Index n, Index stride, Index last) { return n == 0 ? 0 : (n - 1) * stride + last; }

/// The rows of scales, or of scale tiles, of some rows of a matrix.
struct ScaleSpan {
  Index offset = 0, rows = 0, stride = 0, row_bytes = 0;
  Index bytes() const { return span_of(rows, stride, row_bytes); }
};

ScaleSpan scale_span(const QuantMatrix& m, Index begin, Index end) {
  const bool swizzled = m.format.order == ScaleOrder::swizzled;
  const Index step = swizzled ? kScaleTileRows : m.format.block_rows;
  ScaleSpan out;
  out.row_bytes = swizzled ? scale_bytes(m.format, kScaleTileRows, m.cols)
                           : size_of(m.format.scale, scale_cols(m.format, m.cols));
  out.stride = swizzled ? out.row_bytes : m.scale_row_bytes;
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

Result<Pass> Pass::make(const QuantisedLayout& layout, const std::vector<SlotId>& slots,
                        const RankBuffers& values, const RankBuffers& stored, Rank me, To to,
                        Index unit_bytes) {
  Pass pass;
  pass.to_ = to;
  pass.layout_ = layout.values;
  const QuantFormat& format = layout.choice.format;
  pass.needs_amax_ = to == To::quantised && (format.tensor_factor || is_one_block(format));
  for (const QuantisedLayout::Pair& pair : layout.pairs) {
    const Slot& slot = layout.values->slot(pair.values);
    if (!std::ranges::binary_search(slots, pair.values) ||
        !layout.values->rank_set(slot.ranks).contains(me))
      continue;
    std::byte* const plain = values.at(me, pair.values);
    std::byte* const data = stored.at(me, pair.data);
    std::byte* const scales = stored.at(me, pair.scales);
    const bool has_factor = pair.factor.value() >= 0;
    std::byte* const factor = has_factor ? stored.at(me, pair.factor) : nullptr;
    for (const QuantBlockArea& area : block_areas(layout, pair, me)) {
      if (area.rows == 0 || area.cols == 0) continue;
      if (plain == nullptr) return missing(values, pair.values, me);
      if (data == nullptr) return missing(stored, pair.data, me);
      if (scales == nullptr) return missing(stored, pair.scales, me);
      if (has_factor && factor == nullptr) return missing(stored, pair.factor, me);
      RESHARD_TRY(check_quant_format(format, area.rows, area.cols));
      pass.add(
          {{plain + size_of(slot.dtype, area.data_offset), slot.dtype, area.rows, area.cols,
            size_of(slot.dtype, area.data_row)},
           {format, data + size_of(format.data, area.data_offset), area.rows, area.cols,
            size_of(format.data, area.data_row), scales + size_of(format.scale, area.scale_offset),
            size_of(format.scale, area.scale_row),
            has_factor ? factor + size_of(DType::f32, area.factor_offset) : nullptr},
           &slot.name},
          unit_bytes);
    }
  }
  return pass;
}

void Pass::add(Matrix matrix, Index unit_bytes) {
  const Index rows = matrix.values.rows, cols = matrix.values.cols;
  const QuantFormat& format = matrix.stored.format;
  const Index step = row_step(format);
  const Index fit = std::max<Index>(1, unit_bytes / size_of(matrix.values.dtype, cols));
  const Index each = step == 0 ? rows : std::max(step, fit / step * step);
  matrix.first = units_.size();
  for (Index begin = 0; begin < rows; begin += each)
    units_.push_back({matrices_.size(), begin, std::min(rows, begin + each), 0});
  matrix.end = units_.size();
  matrices_.push_back(matrix);
}

template <class Work>
Result<> Pass::for_each_unit(WorkerPool& pool, const ControlPlane& control, Deadline deadline,
                             Work&& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  auto body = [&](int worker) {
    for (std::size_t i = next++; i < units_.size() && !stopped; i = next++) {
      if (i % kLook == 0 && (!control.status() || deadline.expired())) stopped = true;
      if (!stopped) work(i, worker);
    }
  };
  pool.run(body);
  if (!stopped) return {};
  RESHARD_TRY(control.status());
  return fail(Code::deadline, "the deadline passed while local tensors were converted");
}

Result<> Pass::for_each(WorkerPool& pool, const ControlPlane& control, Deadline deadline,
                        const std::function<void(std::size_t, int)>& work) {
  if (needs_amax_) {
    RESHARD_TRY(for_each_unit(pool, control, deadline, [&](std::size_t i, int) {
      FloatMatrix rows = matrices_[units_[i].matrix].values;
      rows.data = places(i).values;
      rows.rows = units_[i].end - units_[i].begin;
      units_[i].amax = amax(rows);
    }));
    end_amax();
  }
  return for_each_unit(pool, control, deadline, work);
}

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

void Pass::end_amax() {
  for (Matrix& m : matrices_) {
    float most = 0;
    for (std::size_t u = m.first; u < m.end; ++u)
      most = std::isnan(most) || units_[u].amax <= most ? most : units_[u].amax;
    set_amax(m.first, most);
  }
}

void Pass::set_amax(std::size_t unit, float amax) {
  std::atomic_ref<float>(matrices_[units_[unit].matrix].amax)
      .store(amax, std::memory_order_relaxed);
}

void Pass::convert(std::size_t unit, const RowPlaces& at) const {
  const Unit& u = units_[unit];
  const Matrix& m = matrices_[u.matrix];
  // The kernels take row numbers of the whole matrix.
  FloatMatrix values = m.values;
  QuantMatrix stored = m.stored;
  values.data = at.values - u.begin * m.values.row_bytes;
  stored.data = at.data - u.begin * m.stored.row_bytes;
  stored.scales = at.scales - scale_span(m.stored, u.begin, u.end).offset;
  stored.factor = at.factor;
  if (to_ == To::quantised) {
    quantise_rows(
        values, stored, u.begin, u.end,
        std::atomic_ref<float>(const_cast<float&>(m.amax)).load(std::memory_order_relaxed));
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

void Pass::place_output(std::size_t unit, std::byte* into, RowPlaces& at) const {
  const RowExtents n = extents(unit);
  if (to_ == To::values) {
    at.values = into;
    return;
  }
  at.data = into;
  at.scales = at.data + lines(n.data.bytes);
  if (n.factor.bytes > 0) at.factor = at.scales + lines(n.scales.bytes);
}

bool Pass::is_converted(std::size_t unit, const RowPlaces& at, std::byte* scratch) const {
  RowPlaces made = at;
  place_output(unit, scratch, made);
  convert(unit, made);
  return equal(unit, made, places(unit));
}

/// True if the output of a unit's conversion is equal in two places.
bool Pass::equal(std::size_t unit, const RowPlaces& a, const RowPlaces& b) const {
  const Unit& u = units_[unit];
  const Matrix& m = matrices_[u.matrix];
  const Index n = u.end - u.begin, cols = m.values.cols;
  if (to_ == To::values)
    return equal_rows(a.values, b.values, n, m.values.row_bytes, size_of(m.values.dtype, cols));
  if (!equal_rows(a.data, b.data, n, m.stored.row_bytes, size_of(m.stored.format.data, cols)))
    return false;
  // The unit of the first row writes the factor, and the scale of a matrix that is one block.
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

}  // namespace reshard::conversion
