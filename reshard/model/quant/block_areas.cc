// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reshard/model/quant/blocks.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard::quant {
namespace {

/// Calls f(leading indices) for each index of the first `n` dimensions of a box.
template <class F>
void for_each_leading(const LocalDims& box, int n, F&& f) {
  Dims at;
  for (int i = 0; i < n; ++i) {
    if (box[static_cast<std::size_t>(i)].empty()) return;
    at.push_back(box[static_cast<std::size_t>(i)].begin());
  }
  while (true) {
    f(at);
    int k = n - 1;
    for (; k >= 0; --k) {
      if (++at[k] < box[static_cast<std::size_t>(k)].end()) break;
      at[k] = box[static_cast<std::size_t>(k)].begin();
    }
    if (k < 0) return;
  }
}

Index offset(const Dims& strides, const Dims& at) {
  Index sum = 0;
  for (int i = 0; i < at.size(); ++i) sum += at[i] * strides[i];
  return sum;
}

/// A slot on one rank, and the offsets of its sections along the stack.
struct StoredSlot {
  Dims strides;
  Index row = 0;  ///< elements from row to row
  int stack_dim = 0;
  std::vector<Index> begins;
  Index stacked = 0;  ///< of all sections along the stack

  StoredSlot(const ModelLayout& layout, SlotId id, Rank r) {
    const Slot& slot = layout.slot(id);
    strides = row_major(layout.local_shape(id, r));
    row = strides[strides.size() - 2];
    stack_dim = slot.stack_dim;
    Index at = 0;
    for (const Section& section : slot.sections) {
      begins.push_back(at);
      const LocalDims held = local_dims(layout, slot, section, r);
      at += held[static_cast<std::size_t>(stack_dim)].size();
    }
    stacked = at;
  }
  /// The offset of a point inside section k.
  Index at(std::size_t k, Dims point) const {
    point[stack_dim] += begins[k];
    return offset(strides, point);
  }
};

class Areas {
 public:
  Areas(const QuantisedLayout& layout, const QuantisedLayout::Pair& pair, Rank r)
      : layout_(layout),
        slot_(layout.values->slot(pair.values)),
        rank_(r),
        n_(slot_.sections[0].extent.size()),
        data_(*layout.values, pair.values, r),
        scales_(*layout.stored, pair.scales, r),
        factor_(*layout.stored, pair.factor.value() < 0 ? pair.scales : pair.factor, r),
        has_factor_(pair.factor.value() >= 0),
        refined_(pair.refined),
        format_(pair.format) {
    if (!pair.exact) return;
    // quantise_layout() found groups; otherwise the pair would have a grid of its own.
    groups_ = *group_blocks(layout_.values->model(), slot_, layout_.choice.input_first);
  }

  /// One area per section and leading index: the grid is the rank's own.
  std::vector<QuantBlockArea> own() &&;
  /// Areas of the blocks of canonical tensors.
  std::vector<QuantBlockArea> canonical() &&;

 private:
  void add_part(const BlockGroup& group, std::size_t index, const PlacedBox& part,
                const LocalDims& held);
  void add_pieces(const BlockGroup& group, std::size_t index, const Dims& leading,
                  const std::array<Interval, 2>& mine, const LocalDims& held);

  const QuantisedLayout& layout_;
  const Slot& slot_;
  Rank rank_;
  int n_;
  StoredSlot data_, scales_, factor_;
  bool has_factor_;
  Index refined_;
  const QuantFormat& format_;
  GroupedSlot groups_;  ///< the sections of scales; none: those of the slot
  std::vector<QuantBlockArea> out_;
};

std::vector<QuantBlockArea> Areas::own() && {
  const bool one = format_.order == ScaleOrder::swizzled && is_one_matrix(slot_);
  const std::size_t matrices = one ? 1 : slot_.sections.size();
  for (std::size_t k = 0; k < matrices; ++k) {
    const LocalDims held = local_dims(*layout_.values, slot_, slot_.sections[k], rank_);
    LocalDims local;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n_); ++i)
      local[i] = shift(held[i], -held[i].begin());
    const Index rows = one ? data_.stacked : held[static_cast<std::size_t>(n_ - 2)].size();
    const Index cols = held[static_cast<std::size_t>(n_ - 1)].size();
    if (rows == 0 || cols == 0) continue;
    std::size_t matrix = k;
    for (std::size_t g = groups_.groups.size(); g-- > 0;)
      if (groups_.groups[g].section == static_cast<int>(k)) matrix = g;
    for_each_leading(local, n_ - 2, [&](Dims at) {
      at.push_back(0);
      at.push_back(0);
      out_.push_back({data_.at(k, at), rows, cols, data_.row, scales_.at(matrix, at), scales_.row,
                      has_factor_ ? factor_.at(matrix, at) : 0});
    });
  }
  return std::move(out_);
}

std::vector<QuantBlockArea> Areas::canonical() && {
  for (std::size_t g = 0; g < groups_.groups.size(); ++g) {
    const BlockGroup& group = groups_.groups[g];
    const Section& section = slot_.sections[static_cast<std::size_t>(group.section)];
    const LocalDims held = local_dims(*layout_.values, slot_, section, rank_);
    for (const int p : group.parts)
      add_part(group, g, section.parts[static_cast<std::size_t>(p)], held);
  }
  return std::move(out_);
}

void Areas::add_part(const BlockGroup& group, std::size_t index, const PlacedBox& part,
                     const LocalDims& held) {
  LocalDims box;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n_); ++i)
    box[i] = Interval{part.at[static_cast<int>(i)], part.at[static_cast<int>(i)] + 1};
  for (int i = 0; i < part.box.rank(); ++i) {
    const int k = part.dims[static_cast<std::size_t>(i)];
    box[static_cast<std::size_t>(k)] = Interval{part.at[k], part.at[k] + part.box[i].size()};
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(n_); ++i) {
    box[i] = intersect(box[i], held[i]);
    if (box[i].empty()) return;
    box[i] = shift(box[i], -held[i].begin());
  }
  const auto rows = static_cast<std::size_t>(n_ - 2);
  const std::array<Interval, 2> mine{shift(box[rows], held[rows].begin()),
                                     shift(box[rows + 1], held[rows + 1].begin())};
  for_each_leading(box, n_ - 2,
                   [&](const Dims& leading) { add_pieces(group, index, leading, mine, held); });
}

void Areas::add_pieces(const BlockGroup& group, std::size_t index, const Dims& leading,
                       const std::array<Interval, 2>& mine, const LocalDims& held) {
  const QuantFormat& f = format_;
  std::array<std::vector<Interval>, 2>
      cuts;  // full dimensions: up to the grid's next line, the rest
  std::array<Index, 2> shift_to{}, block{}, unit{}, origin{};
  for (std::size_t i = 0; i < 2; ++i) {
    const Window& w = group.windows[i];
    block[i] = block_along(i == 0 ? f.block_rows : f.block_cols, w.whole);
    shift_to[i] = w.first - w.at.begin();
    const Index begin = mine[i].begin() + shift_to[i];
    unit[i] = refined_ > 0 ? refined_ : block[i];
    origin[i] = begin / unit[i];
    if (refined_ > 0) {
      // Scales are repeated, so no area may cross a grid line.
      for (Index from = mine[i].begin(); from < mine[i].end();) {
        const Index to = std::min(mine[i].end(), from + block[i] - (from + shift_to[i]) % block[i]);
        cuts[i].push_back({from, to});
        from = to;
      }
      continue;
    }
    const Index line = begin % block[i] == 0
                           ? mine[i].begin()
                           : std::min(mine[i].end(), mine[i].begin() + block[i] - begin % block[i]);
    if (line > mine[i].begin()) cuts[i].push_back({mine[i].begin(), line});
    if (line < mine[i].end()) cuts[i].push_back({line, mine[i].end()});
  }
  const auto at = [&](Index row, Index col) {
    Dims point = leading;
    point.push_back(row);
    point.push_back(col);
    return point;
  };
  const auto r = static_cast<std::size_t>(n_ - 2);
  const auto k = static_cast<std::size_t>(group.section);
  for (const Interval rows : cuts[0]) {
    for (const Interval cols : cuts[1]) {
      const Dims here = at(rows.begin() - held[r].begin(), cols.begin() - held[r + 1].begin());
      const Dims there = at((rows.begin() + shift_to[0]) / unit[0] - origin[0],
                            (cols.begin() + shift_to[1]) / unit[1] - origin[1]);
      out_.push_back({data_.at(k, here), rows.size(), cols.size(), data_.row,
                      scales_.at(index, there), scales_.row,
                      has_factor_ ? factor_.at(index, at(0, 0)) : 0});
    }
  }
}

/// If every row has its own blocks, adjacent matrices are joined: gate and up of an expert of
/// gpt-oss are two rows each.
void join(std::vector<QuantBlockArea>& areas) {
  std::size_t last = 0;
  for (std::size_t i = 1; i < areas.size(); ++i) {
    QuantBlockArea& a = areas[last];
    const QuantBlockArea& b = areas[i];
    const bool next = b.cols == a.cols && b.data_row == a.data_row && b.scale_row == a.scale_row &&
                      b.data_offset == a.data_offset + a.rows * a.data_row &&
                      b.scale_offset == a.scale_offset + a.rows * a.scale_row;
    if (next)
      a.rows += b.rows;
    else
      areas[++last] = b;
  }
  if (!areas.empty()) areas.resize(last + 1);
}

}  // namespace
}  // namespace reshard::quant

namespace reshard {

std::vector<QuantBlockArea> block_areas(const QuantisedLayout& layout,
                                        const QuantisedLayout::Pair& pair, Rank r) {
  const bool canonical =
      (layout.choice.grid == BlockGrid::tensor && pair.exact) || pair.refined > 0;
  quant::Areas areas(layout, pair, r);
  auto found = canonical ? std::move(areas).canonical() : std::move(areas).own();
  const QuantFormat& f = pair.format;
  if (f.block_rows == 1 && f.order == ScaleOrder::rows && !f.tensor_factor) quant::join(found);
  return found;
}

}  // namespace reshard
