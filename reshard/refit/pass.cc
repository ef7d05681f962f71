// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reshard {
namespace {

/// Values of one unit: enough to be worth a turn, few enough to share among threads.
constexpr Index kUnitBytes = Index{512} << 10;
/// Rows of a tile of swizzled scales: threads do not share one.
constexpr Index kTileRows = 128;
/// Units between two looks at the group's state.
constexpr std::size_t kLook = 8;

bool is_one_block(const QuantFormat& format) {
  return format.block_rows == 0 && format.block_cols == 0;
}

/// Rows that a unit is a multiple of; 0: all.
Index row_step(const QuantFormat& format) {
  if (is_one_block(format)) return 1;
  return format.order == ScaleOrder::swizzled ? kTileRows : format.block_rows;
}

Index size_of(DType dtype, Index elements) { return elements * bits(dtype) / 8; }

tl::unexpected<Error> missing(const RankBuffers& buffers, SlotId slot, Rank me) {
  return fail(Code::invalid_argument,
              fmt::format("{}: no memory for local tensor '{}' of rank {}", buffers.layout().name(),
                          buffers.layout().slot(slot).name, me.value()));
}

}  // namespace

Result<Pass> Pass::make(const QuantisedLayout& layout, const std::vector<SlotId>& slots,
                        const RankBuffers& values, const RankBuffers& stored, Rank me, To to) {
  Pass pass;
  pass.to_ = to;
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
          {plain + size_of(slot.dtype, area.data_offset), slot.dtype, area.rows, area.cols,
           size_of(slot.dtype, area.data_row)},
          {format, data + size_of(format.data, area.data_offset), area.rows, area.cols,
           size_of(format.data, area.data_row), scales + size_of(format.scale, area.scale_offset),
           size_of(format.scale, area.scale_row),
           has_factor ? factor + size_of(DType::f32, area.factor_offset) : nullptr});
    }
  }
  return pass;
}

void Pass::add(const FloatMatrix& values, const QuantMatrix& stored) {
  const Index rows = values.rows, step = row_step(stored.format);
  const Index fit = std::max<Index>(1, kUnitBytes / size_of(values.dtype, values.cols));
  const Index each = step == 0 ? rows : std::max(step, fit / step * step);
  Matrix matrix{values, stored, units_.size(), 0, 0};
  for (Index begin = 0; begin < rows; begin += each)
    units_.push_back({matrices_.size(), begin, std::min(rows, begin + each), 0});
  matrix.end = units_.size();
  bytes_ += to_ == To::values
                ? size_of(values.dtype, rows * values.cols)
                : size_of(stored.format.data, rows * values.cols) +
                      scale_bytes(stored.format, rows, values.cols) + (stored.factor ? 4 : 0);
  matrices_.push_back(matrix);
}

template <class Work>
Result<> Pass::for_each_unit(WorkerPool& pool, const ControlPlane& control, Deadline deadline,
                             Work&& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  auto body = [&](int) {
    for (std::size_t i = next++; i < units_.size() && !stopped; i = next++) {
      if (i % kLook == 0 && (!control.status() || deadline.expired())) stopped = true;
      if (!stopped) work(units_[i]);
    }
  };
  pool.run(body);
  if (!stopped) return {};
  RESHARD_TRY(control.status());
  return fail(Code::deadline, "converting local tensors took longer than the deadline allows");
}

void Pass::convert(const Unit& unit) const {
  const Matrix& m = matrices_[unit.matrix];
  if (to_ == To::quantised) {
    quantise_rows(m.values, m.stored, unit.begin, unit.end, m.amax);
  } else {
    dequantise_rows(m.stored, m.values, unit.begin, unit.end);
  }
}

Result<> Pass::run(WorkerPool& pool, const ControlPlane& control, Deadline deadline) {
  if (units_.empty()) return {};
  if (needs_amax_) {
    RESHARD_TRY(for_each_unit(pool, control, deadline, [&](Unit& unit) {
      FloatMatrix rows = matrices_[unit.matrix].values;
      rows.data += unit.begin * rows.row_bytes;
      rows.rows = unit.end - unit.begin;
      unit.amax = amax(rows);
    }));
    for (Matrix& m : matrices_) {
      m.amax = 0;
      for (std::size_t u = m.first; u < m.end; ++u)
        m.amax = std::isnan(m.amax) || units_[u].amax <= m.amax ? m.amax : units_[u].amax;
    }
  }
  return for_each_unit(pool, control, deadline, [&](Unit& unit) { convert(unit); });
}

}  // namespace reshard
