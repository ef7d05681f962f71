// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/converted/converted_rows.h"

#include <algorithm>

#include "reshard/program/compile.h"
#include "reshard/program/converted/delivered_rows.h"
#include "reshard/transform/quantise.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard {
namespace {

/// A range has a multiple of this many rows; 0: all rows.
Index row_step(const QuantFormat& format) {
  return is_one_block(format) ? 1 : rows_per_scale(format);
}

PartRows rows_of(SlotId slot, Index offset, Index rows, Index row, Index stride) {
  return {slot, offset, rows == 0 ? 0 : (rows - 1) * stride + row, row, stride};
}

PartRows scales_of(const QuantFormat& format, SlotId slot, const QuantBlockArea& area, Index begin,
                   Index end) {
  const bool swizzled = format.order == ScaleOrder::swizzled;
  const Index step = rows_per_scale(format);
  const Index row = swizzled ? scale_bytes(format, kScaleTileRows, area.cols)
                             : size_of(format.scale, scale_cols(format, area.cols));
  const Index stride = swizzled ? row : size_of(format.scale, area.scale_row);
  const Index first = step == 0 ? 0 : begin / step;
  const Index rows = step == 0 ? 1 : (end + step - 1) / step - first;
  return rows_of(slot, size_of(format.scale, area.scale_offset) + first * stride, rows, row,
                 stride);
}

/// Ranges of at most `most` rows.
std::vector<Interval> cut(const std::vector<Interval>& ranges, Index most) {
  std::vector<Interval> out;
  for (const Interval range : ranges)
    for (Index begin = range.begin(); begin < range.end(); begin += most)
      out.emplace_back(begin, std::min(range.end(), begin + most));
  return out;
}

}  // namespace

Result<std::vector<ConvertedRows>> converted_rows(const SideConversion& side, Rank rank,
                                                  Index unit_bytes) {
  const QuantisedLayout& layout = *side.layout;
  std::vector<ConvertedRows> out;
  std::size_t matrix = 0;
  for (const QuantisedLayout::Pair& pair : layout.pairs) {
    const Slot& slot = layout.values->slot(pair.values);
    const QuantFormat& format = pair.format;
    if (!std::ranges::binary_search(side.slots, pair.values) ||
        !layout.values->rank_set(slot.ranks).contains(rank))
      continue;
    for (const auto& [area, delivered] : RESHARD_TRY(delivered_areas(side, pair, rank))) {
      RESHARD_TRY(check_quant_format(format, area.rows, area.cols));
      const Index step = row_step(format), row = size_of(slot.dtype, area.cols);
      const Index fit = std::max<Index>(1, unit_bytes / row);
      const Index each = step == 0 ? area.rows : std::max(step, fit / step * step);
      for (const Interval range : cut(delivered, each)) {
        const Index begin = range.begin(), n = range.size();
        const auto part = [&, &a = area](SlotId id, DType dtype) {
          const Index stride = size_of(dtype, a.data_row);
          return rows_of(id, size_of(dtype, a.data_offset) + begin * stride, n,
                         size_of(dtype, a.cols), stride);
        };
        ConvertedRows rows{matrix, area.rows, area.cols, begin, range.end(), {}, format};
        rows.parts = {part(pair.values, slot.dtype), part(pair.data, format.data),
                      scales_of(format, pair.scales, area, begin, range.end()), PartRows{}};
        if (pair.factor.value() >= 0)
          rows.parts[3] = rows_of(pair.factor, size_of(DType::f32, area.factor_offset), 1, 4, 4);
        out.push_back(rows);
      }
      ++matrix;
    }
  }
  return out;
}

}  // namespace reshard
