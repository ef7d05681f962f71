// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/blocks.h"

#include <algorithm>
#include <numeric>

namespace reshard::quant {

LocalDims local_dims(const ModelLayout& layout, const Slot& slot, const Section& section, Rank r) {
  const Mesh& mesh = layout.mesh(slot.mesh);
  Dims coordinates;
  for (int i = 0; i < static_cast<int>(mesh.axes().size()); ++i)
    coordinates.push_back(mesh.coordinate(r, i));
  LocalDims held;
  for (int i = 0; i < section.extent.size(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    const CutId id = section.cuts[k];
    held[k] = id == CutId(0) ? Interval{0, section.extent[i]}
                             : cut(layout.dim_cut(id), mesh, section.extent[i], coordinates);
  }
  return held;
}

bool is_one_matrix(const Slot& slot) {
  return slot.stack_dim == slot.sections[0].extent.size() - 2;
}

MatrixDims matrix_dims(const CanonicalTensor& tensor, const std::set<std::string>& input_first) {
  const int n = tensor.shape.size();
  return input_first.contains(tensor.name) ? MatrixDims{n - 1, 1} : MatrixDims{n - 2, n - 1};
}

std::optional<bool> is_transposed(const Section& section, const PlacedBox& part, MatrixDims dims) {
  const int n = section.extent.size(), m = part.box.rank();
  if (m < 2 || n < 2) return std::nullopt;
  const int row = part.dims[static_cast<std::size_t>(dims.row)];
  const int col = part.dims[static_cast<std::size_t>(dims.col)];
  if (row == n - 2 && col == n - 1) return false;
  if (row == n - 1 && col == n - 2) return true;
  return std::nullopt;
}

namespace {

/// @pre is_transposed() has a value
std::array<Window, 2> windows_of(const ModelSpec& model, const Section& section,
                                 const PlacedBox& part, MatrixDims dims) {
  const int n = section.extent.size();
  const bool transposed = *is_transposed(section, part, dims);
  std::array<Window, 2> windows;
  for (int i = 0; i < 2; ++i) {
    const int c = (i == 0) != transposed ? dims.row : dims.col;
    const Index at = part.at[n - 2 + i];
    windows[static_cast<std::size_t>(i)] = {Interval{at, at + part.box[c].size()},
                                            part.box[c].begin(), model[part.tensor].shape[c]};
  }
  return windows;
}

bool earlier(const BlockGroup& a, const BlockGroup& b) {
  for (std::size_t i = 0; i < 2; ++i)
    if (a.windows[i].at.begin() != b.windows[i].at.begin())
      return a.windows[i].at.begin() < b.windows[i].at.begin();
  return false;
}

/// The groups of one section, in order; none if a part has no rows and columns.
std::optional<std::vector<BlockGroup>> groups_of(const ModelSpec& model, const Section& section,
                                                 int index,
                                                 const std::set<std::string>& input_first) {
  std::vector<BlockGroup> groups;
  for (std::size_t p = 0; p < section.parts.size(); ++p) {
    const PlacedBox& part = section.parts[p];
    const MatrixDims dims = matrix_dims(model[part.tensor], input_first);
    if (!is_transposed(section, part, dims)) return std::nullopt;
    const auto windows = windows_of(model, section, part, dims);
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const BlockGroup& g) { return g.windows == windows; });
    if (it == groups.end()) it = groups.insert(groups.end(), {index, windows, {}});
    it->parts.push_back(static_cast<int>(p));
  }
  std::stable_sort(groups.begin(), groups.end(), earlier);
  return groups;
}

}  // namespace

std::optional<GroupedSlot> group_blocks(const ModelSpec& model, const Slot& slot,
                                        const std::set<std::string>& input_first) {
  GroupedSlot out{{}, slot.stack_dim, false};
  for (std::size_t k = 0; k < slot.sections.size(); ++k) {
    const Section& section = slot.sections[k];
    auto groups = groups_of(model, section, static_cast<int>(k), input_first);
    if (!groups || groups->empty()) return std::nullopt;
    const int n = section.extent.size();
    bool rows = false, cols = false;
    for (const BlockGroup& g : *groups) {
      rows |= !(g.windows[0] == groups->front().windows[0]);
      cols |= !(g.windows[1] == groups->front().windows[1]);
    }
    if (rows && cols) return std::nullopt;
    const int along = rows ? n - 2 : cols ? n - 1 : slot.stack_dim;
    if (along != slot.stack_dim && slot.sections.size() > 1) return std::nullopt;
    if (rows || cols) out.stack_dim = along;
    out.ragged |= (rows || cols) && n > 2;
    for (BlockGroup& g : *groups) out.groups.push_back(std::move(g));
  }
  return out;
}

const std::vector<Interval>& PieceTable::pieces(const Slot& slot, const Section& section, int dim) {
  const CutId cut = section.cuts[static_cast<std::size_t>(dim)];
  const auto key = std::tuple(cut == CutId(0) ? -1 : int{slot.mesh.value()},
                              cut == CutId(0) ? -1 : int{slot.ranks.value()}, int{cut.value()},
                              section.extent[dim]);
  const auto [it, fresh] = known_.try_emplace(key);
  if (!fresh) return it->second;
  std::vector<Interval>& found = it->second;
  if (cut == CutId(0)) {
    if (section.extent[dim] > 0) found.push_back({0, section.extent[dim]});
    return found;
  }
  layout_.rank_set(slot.ranks).for_each([&](Rank r) {
    const Interval held = local_dims(layout_, slot, section, r)[static_cast<std::size_t>(dim)];
    if (!held.empty() && std::find(found.begin(), found.end(), held) == found.end())
      found.push_back(held);
  });
  return found;
}

std::optional<Index> PieceTable::remainder(const Slot& slot, const Section& section, int dim,
                                           Index divisor) const {
  std::optional<Index> common;
  bool same = true;
  layout_.rank_set(slot.ranks).for_each([&](Rank r) {
    const Interval held = local_dims(layout_, slot, section, r)[static_cast<std::size_t>(dim)];
    same &= !common || *common == held.size() % divisor;
    common = held.size() % divisor;
  });
  return same ? common.value_or(0) : std::optional<Index>();
}

Alignment PieceTable::alignment(const Slot& slot, const BlockGroup& group, Index block_rows,
                                Index block_cols) {
  const Section& section = slot.sections[static_cast<std::size_t>(group.section)];
  Alignment a;
  for (int i = 0; i < 2; ++i) {
    const Window& w = group.windows[static_cast<std::size_t>(i)];
    const Index block = i == 0 ? block_rows : block_cols;
    const Index grid = block_along(block, w.whole);
    for (const Interval held : pieces(slot, section, section.extent.size() - 2 + i)) {
      const Interval mine = intersect(held, w.at);
      if (mine.empty()) continue;
      const Interval there = shift(mine, w.first - w.at.begin()), here = shift(mine, -held.begin());
      const Index own = block_along(block, held.size());
      const bool whole =
          there.begin() % grid == 0 && (there.end() % grid == 0 || there.end() == w.whole);
      a.whole &= whole;
      a.own &=
          whole && here.begin() % own == 0 && (here.end() % own == 0 || here.end() == held.size());
      if (i == 0) continue;
      for (const Index at : {there.begin(), there.end(), here.begin(), here.end(), held.size()})
        a.step = std::gcd(a.step, at);
    }
  }
  return a;
}

namespace {

constexpr Index kLeastBlock = 32;

/// True if a group is the whole section as in the canonical tensor, in whole blocks: the loader
/// repeats the scales before it cuts.
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

}  // namespace reshard::quant
