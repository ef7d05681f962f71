// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reshard/memory/host_buffer.h"

namespace reshard {
namespace {

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
  bytes_ += to_ == To::values
                ? size_of(matrix.values.dtype, rows * cols)
                : size_of(format.data, rows * cols) + scale_bytes(format, rows, cols) +
                      (matrix.stored.factor ? 4 : 0);
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
  return fail(Code::deadline, "converting local tensors took longer than the deadline allows");
}

Result<> Pass::find_amaxes(WorkerPool& pool, const ControlPlane& control, Deadline deadline) {
  if (!needs_amax_) return {};
  RESHARD_TRY(
      for_each_unit(pool, control, deadline, [&](std::size_t i, int) { add_amax(i, places(i)); }));
  end_amax();
  return {};
}

Result<> Pass::run(WorkerPool& pool, const ControlPlane& control, Deadline deadline) {
  if (units_.empty()) return {};
  RESHARD_TRY(find_amaxes(pool, control, deadline));
  return for_each_unit(pool, control, deadline, [&](std::size_t i, int) { convert(i, places(i)); });
}

Result<std::string> Pass::compare(WorkerPool& pool, const ControlPlane& control,
                                  Deadline deadline) {
  if (units_.empty()) return std::string();
  RESHARD_TRY(find_amaxes(pool, control, deadline));
  const Index each = (scratch_bytes() + 63) / 64 * 64;
  HostBuffer scratch = RESHARD_TRY(HostBuffer::allocate(each * pool.size()));
  std::atomic<std::size_t> wrong{units_.size()};
  RESHARD_TRY(for_each_unit(pool, control, deadline, [&](std::size_t i, int worker) {
    if (is_converted(i, places(i), scratch.data() + each * worker)) return;
    std::size_t first = wrong.load();
    while (i < first && !wrong.compare_exchange_weak(first, i)) {
    }
  }));
  return wrong < units_.size() ? name(wrong) : std::string();
}

}  // namespace reshard
