// SPDX-License-Identifier: Apache-2.0
// Law 5 from the plan's boxes and the layouts alone: no copy, tile or unit of the compiler is used.
#include <algorithm>

#include "reshard/program/check.h"
#include "reshard/transform/quantise.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard {
namespace {

/// Sorts ranges and joins those that touch.
void normalise(std::vector<Interval>& ranges) {
  std::ranges::sort(ranges, {}, [](const Interval& i) { return std::pair(i.begin(), i.end()); });
  std::vector<Interval> out;
  for (const Interval& i : ranges) {
    if (!out.empty() && i.begin() <= out.back().end()) {
      out.back() = Interval(out.back().begin(), std::max(out.back().end(), i.end()));
    } else if (!i.empty()) {
      out.push_back(i);
    }
  }
  ranges = std::move(out);
}

/// Adds the bytes of each row of a box of a fragment.
void add_box(const Fragment& fragment, const Box& box, int element_bits,
             std::vector<Interval>& out) {
  const int rank = box.rank();
  const int last = rank - 1;
  const bool in_runs = rank > 0 && fragment.where.strides[last] == 1;
  const Index run = in_runs ? box[last].size() : 1;
  for (Index i = 0; i < box.volume(); i += run) {
    Index rest = i, at = fragment.where.offset;
    for (int d = last; d >= 0; --d) {
      at += (box[d].begin() - fragment.box[d].begin() + rest % box[d].size()) *
            fragment.where.strides[d];
      rest /= box[d].size();
    }
    out.emplace_back(at * element_bits / 8, ((at + run) * element_bits + 7) / 8);
  }
}

void add_rows(Index offset, Index rows, Index row, Index stride, std::vector<Interval>& out) {
  for (Index i = 0; i < rows; ++i) out.emplace_back(offset + i * stride, offset + i * stride + row);
}

/// The fate of an element of a local tensor under a plan.
enum class Fate : std::uint8_t { padding, stays, delivered };

/// The fate of each element; empty if all canonical tensors of the local tensor are delivered.
std::vector<Fate> fates_of(const SideConversion& after, SlotId slot, Rank r) {
  const LocalTensor local = after.layout->values->local(slot, r);
  const auto delivered = [&](const Fragment& f) {
    return after.delivers.empty() || after.delivers[f.tensor.index()];
  };
  std::vector<Fate> out;
  bool whole = true;
  for (const Section& section : after.layout->values->slot(slot).sections)
    for (const PlacedBox& part : section.parts)
      whole &= after.delivers.empty() || after.delivers[part.tensor.index()];
  if (whole) return out;
  out.assign(static_cast<std::size_t>(volume(local.shape)), Fate::padding);
  std::vector<Interval> elements;
  for (const Fragment& f : local.fragments) {
    elements.clear();
    add_box(f, f.box, 8, elements);
    for (const Interval& run : elements)
      for (Index i = run.begin(); i < run.end(); ++i)
        out[static_cast<std::size_t>(i)] = delivered(f) ? Fate::delivered : Fate::stays;
  }
  return out;
}

/// The rows of blocks, or the whole matrix if it has one scale or factor.
Index rows_at_once(const SideConversion& after, const QuantFormat& format,
                   const QuantBlockArea& a) {
  if (is_one_block(format) || format.block_rows == 0) return a.rows;
  if (after.quantises && needs_amax(format)) return a.rows;
  return format.order == ScaleOrder::swizzled ? kScaleTileRows : format.block_rows;
}

/// The rows of a matrix that are written.
std::vector<Interval> rows_written(const SideConversion& after, const QuantFormat& format,
                                   const QuantBlockArea& a, const std::vector<Fate>& fates) {
  if (fates.empty()) return {Interval{0, a.rows}};
  const Index step = rows_at_once(after, format, a);
  std::vector<Interval> out;
  for (Index begin = 0; begin < a.rows; begin += step) {
    const Index end = std::min(a.rows, begin + step);
    bool delivered = false;
    for (Index row = begin; row < end; ++row)
      for (Index col = 0; col < a.cols; ++col)
        delivered |= fates[static_cast<std::size_t>(a.data_offset + row * a.data_row + col)] ==
                     Fate::delivered;
    if (delivered) out.emplace_back(begin, end);
  }
  return out;
}

/// Adds the bytes of some rows of a matrix in the form that is in memory.
void add_area(const SideConversion& after, const QuantisedLayout::Pair& pair, Rank r,
              const QuantBlockArea& a, Interval rows, TargetBytes& out) {
  const QuantisedLayout& layout = *after.layout;
  const QuantFormat& format = pair.format;
  const Index first = a.data_offset + rows.begin() * a.data_row;
  const auto add = [&](SlotId slot, DType dtype) {
    add_rows(size_of(dtype, first), rows.size(), size_of(dtype, a.cols), size_of(dtype, a.data_row),
             out[{r, slot}]);
  };
  if (!after.quantises) return add(pair.values, layout.values->slot(pair.values).dtype);
  add(pair.data, format.data);
  const Index scales = size_of(format.scale, a.scale_offset);
  if (format.order == ScaleOrder::swizzled) {
    const Index before = rows.begin() == 0 ? 0 : scale_bytes(format, rows.begin(), a.cols);
    add_rows(scales + before, 1, scale_bytes(format, rows.size(), a.cols), 0,
             out[{r, pair.scales}]);
  } else {
    const Index before = rows.begin() == 0 ? 0 : scale_rows(format, rows.begin());
    const Index stride = size_of(format.scale, a.scale_row);
    add_rows(scales + before * stride, scale_rows(format, rows.size()),
             size_of(format.scale, scale_cols(format, a.cols)), stride, out[{r, pair.scales}]);
  }
  if (pair.factor.value() >= 0) add_rows(a.factor_offset * 4, 1, 4, 4, out[{r, pair.factor}]);
}

/// Adds the bytes of the form that is in memory of one pair.
void add_pair(const SideConversion& after, const QuantisedLayout::Pair& pair, Rank r,
              TargetBytes& out) {
  const std::vector<Fate> fates = fates_of(after, pair.values, r);
  for (const QuantBlockArea& a : block_areas(*after.layout, pair, r)) {
    if (a.rows == 0 || a.cols == 0) continue;
    for (const Interval rows : rows_written(after, pair.format, a, fates))
      add_area(after, pair, r, a, rows, out);
  }
}

}  // namespace

Result<TargetBytes> delivered_bytes(const Planner& planner, std::span<const Rank> destinations,
                                    const SideConversion& after) {
  if (after.finish != nullptr) return delivered_bytes(*after.finish, destinations, {});
  TargetBytes out;
  const ModelLayout& target = planner.target();
  for (const Rank r : destinations) {
    if (after.layout != nullptr) {
      const QuantisedLayout& layout = *after.layout;
      for (const QuantisedLayout::Pair& pair : layout.pairs)
        if (std::ranges::binary_search(after.slots, pair.values) &&
            layout.values->rank_set(layout.values->slot(pair.values).ranks).contains(r))
          add_pair(after, pair, r, out);
      continue;
    }
    std::map<TensorId, std::vector<Fragment>> fragments;
    if (!target.ranks().contains(r)) continue;
    for (const SlotId slot : target.slots_of(r))
      for (const Fragment& f : target.local(slot, r).fragments) fragments[f.tensor].push_back(f);
    planner.for_each_delivery(r, [&](const Transfer& t) {
      for (const Fragment& f : fragments[t.tensor])
        if (const Box box = intersect(f.box, t.box); box.volume() > 0)
          add_box(f, box, bits(target.slot(f.slot).dtype), out[{r, f.slot}]);
    });
  }
  for (auto& [tensor, ranges] : out) normalise(ranges);
  return out;
}

}  // namespace reshard
