// SPDX-License-Identifier: Apache-2.0
#include "reshard/sharding/cut.h"

#include <algorithm>

namespace reshard {

DimCut cut_over(int axis, CutRule rule, Index granule) {
  DimCut how;
  how.axes[0] = static_cast<std::int8_t>(axis);
  how.num_axes = 1;
  how.rule = rule;
  how.granule = granule;
  return how;
}

Interval part_of(CutRule rule, Index m, Index n, Index c) {
  switch (rule) {
    case CutRule::ceil: {
      const Index chunk = (m + n - 1) / n;
      return Interval{std::min(m, c * chunk), std::min(m, (c + 1) * chunk)};
    }
    case CutRule::spread:
      if (n > m) return m == 0 ? Interval{} : Interval{c * m / n, c * m / n + 1};
      [[fallthrough]];
    case CutRule::balanced: break;
  }
  const Index each = m / n, more = m % n;
  const Index begin = c * each + std::min(c, more);
  return Interval{begin, begin + each + (c < more ? 1 : 0)};
}

Index num_parts(const DimCut& how, const Mesh& mesh) {
  Index n = 1;
  for (int i = 0; i < how.num_axes; ++i)
    n *= mesh.axes()[static_cast<std::size_t>(how.axes[static_cast<std::size_t>(i)])].size;
  return n;
}

Interval blocks_of(const BlockCut& blocks, Interval held) {
  const auto up = [](Index n, Index by) { return (n + by - 1) / by; };
  if (blocks.own_grid) {
    const Index all = blocks.before + up(held.size(), blocks.block);
    return Interval{0, up(all, blocks.multiple) * blocks.multiple - blocks.before};
  }
  const Interval mine = intersect(held, blocks.window);
  if (mine.empty()) return {};
  const Interval at = shift(mine, blocks.first - blocks.window.begin());
  const Index origin = blocks.first / blocks.block;
  return Interval{at.begin() / blocks.block - origin, up(at.end(), blocks.block) - origin};
}

namespace {

Interval cut_elements(const DimCut& how, const Mesh& mesh, Index extent, const Dims& coordinates) {
  const Index units = (extent + how.granule - 1) / how.granule;
  const auto size_of = [&](int i) {
    return mesh.axes()[static_cast<std::size_t>(how.axes[static_cast<std::size_t>(i)])].size;
  };
  const auto coordinate = [&](int i) { return coordinates[how.axes[static_cast<std::size_t>(i)]]; };
  Interval held{0, units};
  if (how.combine == DimCut::Combine::flattened) {
    Index c = 0;
    for (int i = 0; i < how.num_axes; ++i) c = c * size_of(i) + coordinate(i);
    held = part_of(how.rule, units, num_parts(how, mesh), c);
  } else {
    for (int i = 0; i < how.num_axes; ++i)
      held = shift(part_of(how.rule, held.size(), size_of(i), coordinate(i)), held.begin());
  }
  if (held.empty()) return {};
  return Interval{held.begin() * how.granule, std::min(extent, held.end() * how.granule)};
}

}  // namespace

Interval cut(const DimCut& how, const Mesh& mesh, Index extent, const Dims& coordinates) {
  if (how.blocks.block == 0) return cut_elements(how, mesh, extent, coordinates);
  return blocks_of(how.blocks, cut_elements(how, mesh, how.blocks.elements, coordinates));
}

}  // namespace reshard
