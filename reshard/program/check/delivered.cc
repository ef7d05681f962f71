// SPDX-License-Identifier: Apache-2.0
// Law 5 from the plan's boxes and the layouts alone: no copy, tile or unit of the compiler is used.
#include <algorithm>

#include "reshard/program/check.h"
#include "reshard/transform/quantise.h"

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

/// Adds the bytes of the form that is in memory of one pair.
void add_pair(const SideConversion& after, const QuantisedLayout::Pair& pair, Rank r,
              TargetBytes& out) {
  const QuantisedLayout& layout = *after.layout;
  const QuantFormat& format = layout.choice.format;
  for (const QuantBlockArea& a : block_areas(layout, pair, r)) {
    if (a.rows == 0 || a.cols == 0) continue;
    if (!after.quantises) {
      const DType dtype = layout.values->slot(pair.values).dtype;
      add_rows(size_of(dtype, a.data_offset), a.rows, size_of(dtype, a.cols),
               size_of(dtype, a.data_row), out[{r, pair.values}]);
      continue;
    }
    add_rows(size_of(format.data, a.data_offset), a.rows, size_of(format.data, a.cols),
             size_of(format.data, a.data_row), out[{r, pair.data}]);
    const Index scales = size_of(format.scale, a.scale_offset);
    if (format.order == ScaleOrder::swizzled) {
      add_rows(scales, 1, scale_bytes(format, a.rows, a.cols), 0, out[{r, pair.scales}]);
    } else {
      add_rows(scales, scale_rows(format, a.rows),
               size_of(format.scale, scale_cols(format, a.cols)),
               size_of(format.scale, a.scale_row), out[{r, pair.scales}]);
    }
    if (pair.factor.value() >= 0) add_rows(a.factor_offset * 4, 1, 4, 4, out[{r, pair.factor}]);
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
