// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "reshard/model/quant/blocks.h"

namespace reshard::detail {
namespace {

constexpr Index kLeastBlock = 32;

/// True where a group is all of its section, as the canonical tensor has it, and whole blocks: the
/// loader repeats the scales of all before it cuts.
bool is_as_stored(const BlockGroup& g, const Section& section, Index block) {
  const int n = section.extent.size();
  for (int i = 0; i < 2; ++i) {
    const Window& w = g.windows[static_cast<std::size_t>(i)];
    if (w.at != Interval{0, section.extent[n - 2 + i]} || w.first != 0 || w.whole != w.at.size() ||
        w.whole % block != 0)
      return false;
  }
  return true;
}

}  // namespace

Index refined_block(PieceTable& pieces, const Slot& slot, const std::optional<GroupedSlot>& groups,
                    const QuantFormat& f) {
  constexpr int kRows = 1, kCols = 2;
  if (!groups || groups->groups.size() != slot.sections.size() || slot.padded) return 0;
  if (f.scale != DType::f32 || f.block_rows <= 1 || f.block_rows != f.block_cols) return 0;
  // w13 is cut along its rows, w2 along its columns.
  const int inner = slot.stack_dim == kRows ? kRows : kCols;
  Index block = f.block_rows;
  bool fits = true;
  for (std::size_t k = 0; k < slot.sections.size(); ++k) {
    const Section& section = slot.sections[k];
    if (section.extent.size() != 3 || !is_as_stored(groups->groups[k], section, f.block_rows))
      return 0;
    for (const int dim : {kRows, kCols})
      for (const Interval piece : pieces.pieces(slot, section, dim)) {
        block = std::gcd(block, piece.size());
        fits = fits && (dim != inner || piece.size() % f.block_rows == 0);
      }
  }
  return fits || block < kLeastBlock ? 0 : block;
}

void add_repeated(const PlacedBox& part, Index times, Section& section) {
  const int n = section.extent.size();
  for (Index at = 0; at < times * times; ++at) {
    PlacedBox p = part;
    bool held = true;
    for (int i = 0; i < part.box.rank(); ++i) {
      const int d = part.dims[static_cast<std::size_t>(i)];
      if (d < n - 2) continue;
      const Index first = d == n - 2 ? at / times : at % times;
      const Index fit = (section.extent[d] - first + times - 1) / times;
      const Index count = std::min(part.box[i].size(), fit), begin = part.box[i].begin();
      p.at[d] = first;
      p.gaps[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(times - 1);
      held = held && count > 0;
      if (held) p.box = p.box.with(i, Interval{begin, begin + count});
    }
    if (held) section.parts.push_back(std::move(p));
  }
}

}  // namespace reshard::detail
