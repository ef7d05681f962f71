// SPDX-License-Identifier: Apache-2.0
#include "reshard/program/converted/converted_moves.h"

#include <algorithm>
#include <tuple>

#include "reshard/layout/clip.h"
#include "reshard/program/builder.h"

namespace reshard::converted {

namespace {

void sort_loops(StridedCopy& copy) {
  std::sort(copy.loops.begin(), copy.loops.begin() + copy.num_loops,
            [](const auto& a, const auto& b) { return a.dst_stride > b.dst_stride; });
}

/// clip_destination() for the source.
void clip_source(const StridedCopy& copy, Index begin, Index end, std::vector<StridedCopy>& out) {
  StridedCopy back = reversed(copy);
  sort_loops(back);
  std::vector<StridedCopy> parts;
  clip_destination(back, begin, end, parts);
  for (const StridedCopy& part : parts) {
    StridedCopy forward = reversed(part);
    sort_loops(forward);
    out.push_back(forward);
  }
}

}  // namespace

Result<ConvertedSide> ConvertedSide::make(const SideConversion& side, bool is_target, Rank rank,
                                          Index unit_bytes, Index batch_bytes) {
  ConvertedSide out;
  out.side_ = &side;
  out.is_target_ = is_target;
  out.planned_values_ = is_target == side.quantises;
  out.rank_ = rank;
  out.rows_ = RESHARD_TRY(converted_rows(side, rank, unit_bytes));
  out.placed_.resize(out.rows_.size());
  for (std::size_t u = 0; u < out.rows_.size(); ++u) out.place(u);
  out.make_batches(batch_bytes);
  std::ranges::sort(out.ranges_, [](const Range& a, const Range& b) {
    return std::tuple(a.slot, a.begin, a.unit) < std::tuple(b.slot, b.begin, b.unit);
  });
  return out;
}

void ConvertedSide::place(std::size_t unit) {
  Placed& placed = placed_[unit];
  for (std::size_t p = 0; p < kMatrixParts; ++p) {
    const PartRows& part = rows_[unit].parts[p];
    if (!is_planned(p) || part.slot.value() < 0) continue;
    placed.at[p] = placed.bytes;
    placed.bytes += whole_lines(part.bytes);
    // Other columns in between belong to other units.
    const Index each = part.row == part.stride ? part.bytes : part.row;
    for (Index at = 0; at < part.bytes; at += each == part.bytes ? each : part.stride)
      ranges_.push_back(
          {part.slot, part.offset + at, std::min(each, part.bytes - at), unit, placed.at[p] + at});
    longest_ = std::max(longest_, each);
  }
}

void ConvertedSide::make_batches(Index bytes) {
  for (Placed& unit : placed_) {
    if (batch_bytes_.empty() || batch_bytes_.back() + unit.bytes > bytes) batch_bytes_.push_back(0);
    unit.batch = batch_bytes_.size() - 1;
    unit.at_in_batch = batch_bytes_.back();
    batch_bytes_.back() += unit.bytes;
  }
}

Index ConvertedSide::wanted_bytes(std::size_t unit) const {
  Index bytes = 0;
  for (std::size_t p = 0; p < kMatrixParts; ++p) {
    const PartRows& part = rows_[unit].parts[p];
    if (is_planned(p) && part.slot.value() >= 0 && part.bytes > 0)
      bytes += ((part.bytes - part.row) / part.stride + 1) * part.row;
  }
  return bytes;
}

Index ConvertedSide::memory_bytes(std::size_t unit) const {
  Index bytes = 0;
  for (std::size_t p = 0; p < kMatrixParts; ++p) {
    const PartRows& part = rows_[unit].parts[p];
    // All units of a matrix share its factor, or its only scale.
    const bool shared =
        p == static_cast<std::size_t>(MatrixPart::factor) ||
        (p == static_cast<std::size_t>(MatrixPart::scales) && is_one_block(rows_[unit].format));
    if (shared && rows_[unit].begin > 0) continue;
    if (!is_planned(p) && part.slot.value() >= 0 && part.bytes > 0)
      bytes += ((part.bytes - part.row) / std::max<Index>(part.stride, 1) + 1) * part.row;
  }
  return bytes;
}

Index ConvertedSide::spread_bytes(std::size_t unit) const {
  Index bytes = 0;
  for (std::size_t p = 0; p < kMatrixParts; ++p)
    if (!is_planned(p)) bytes += whole_lines(rows_[unit].parts[p].bytes);
  return bytes;
}

ProgramMatrix ConvertedSide::matrix(std::size_t unit, Place planned, Place amax,
                                    const MemoryPlace& memory) const {
  const ConvertedRows& rows = rows_[unit];
  const auto at = [&](MatrixPart part) -> Place {
    const auto p = static_cast<std::size_t>(part);
    const PartRows& where = rows.parts[p];
    if (where.slot.value() < 0) return {};
    if (is_planned(p)) return {planned.buffer, planned.offset + placed_[unit].at[p]};
    return memory(where);
  };
  ProgramMatrix m;
  m.format = rows.format;
  m.values_dtype = side_->layout->values->slot(rows.part(MatrixPart::values).slot).dtype;
  m.rows = rows.rows;
  m.cols = rows.cols;
  m.begin = rows.begin;
  m.end = rows.end;
  m.values = at(MatrixPart::values);
  m.data = at(MatrixPart::data);
  m.scales = at(MatrixPart::scales);
  m.factor = at(MatrixPart::factor);
  m.values_row = rows.part(MatrixPart::values).stride;
  m.data_row = rows.part(MatrixPart::data).stride;
  m.scales_row = rows.part(MatrixPart::scales).stride;
  m.amax = amax;
  return m;
}

ConvertedSide::Cut ConvertedSide::cut(std::span<const Move> moves) const {
  Cut out;
  std::vector<StridedCopy> parts;
  for (const Move& m : moves) {
    const SlotId slot = is_target_ ? m.dst_slot : m.src_slot;
    const Interval span = is_target_ ? destination_span(m.copy) : source_span(m.copy);
    Index done = span.begin();
    auto range =
        std::ranges::lower_bound(ranges_, std::tuple(slot, span.begin() - longest_), {},
                                 [](const Range& r) { return std::tuple(r.slot, r.begin); });
    for (; range != ranges_.end() && range->slot == slot && range->begin < span.end(); ++range) {
      const Index end = range->begin + range->bytes;
      const Index begin = is_target_ ? range->begin : std::max(range->begin, done);
      if (begin >= end) continue;
      done = end;
      parts.clear();
      is_target_ ? clip_destination(m.copy, begin, end, parts)
                 : clip_source(m.copy, begin, end, parts);
      for (StridedCopy& part : parts) {
        (is_target_ ? part.dst_offset : part.src_offset) += range->at - range->begin;
        Move piece = m;
        piece.copy = part;
        out[range->unit].push_back(piece);
      }
    }
  }
  return out;
}

}  // namespace reshard::converted
