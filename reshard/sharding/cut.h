// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "reshard/index/box.h"
#include "reshard/sharding/mesh.h"

namespace reshard {

/// How n parts share m units of a dimension.
enum class CutRule : std::uint8_t {
  balanced,  ///< the first m mod n parts have one unit more: 10 over 4 = 3, 3, 2, 2.
  ceil,      ///< torch.chunk: ceil(m / n) each, then a rest, then nothing: 10 over 4 = 3, 3, 3, 1.
  spread,    ///< balanced while n <= m; above, part c holds the one unit floor(c * m / n) (KV heads
             ///< under high TP).
};

/// Says that a dimension counts blocks of elements (scales, one for each block) and is cut where
/// its elements are: a part holds every block that its elements touch, so neighbours may hold the
/// same.
struct BlockCut {
  Index block = 0;     ///< elements of a block; 0: the dimension is one of elements.
  Index elements = 0;  ///< of the dimension that the cut cuts.
  Interval window;     ///< of those elements: whose blocks this dimension has, from 0.
  Index first = 0;     ///< where window.begin() lies in the grid that blocks are counted in.
  /// The grid begins anew at each part: n elements have ceil(n / block) blocks, counted from 0, and
  /// as many more as make `before` and them a multiple of `multiple`. Ignores window and first.
  bool own_grid = false;
  Index before = 0, multiple = 1;
  friend bool operator==(const BlockCut&, const BlockCut&) = default;
};

/// The blocks of a part that holds these elements. @pre blocks.block >= 1
Interval blocks_of(const BlockCut& blocks, Interval held);

/// How one dimension of a tensor is cut over axes of a mesh. No axes: every rank holds the whole
/// dimension.
///
/// Each axis in turn cuts what the one before left (`sequential`, as DTensor placements do, major
/// axis first); or all axes count as one whose coordinate is their row-major index, first axis
/// major (`flattened`). The dimension is cut at multiples of `granule` elements; a rest shorter
/// than a granule belongs to the last.
struct DimCut {
  enum class Combine : std::uint8_t { sequential, flattened };
  std::array<std::int8_t, 4> axes{};
  std::int8_t num_axes = 0;
  CutRule rule = CutRule::balanced;
  Combine combine = Combine::sequential;
  Index granule = 1;
  BlockCut blocks = {};
  friend bool operator==(const DimCut&, const DimCut&) = default;
};

/// The cut over one axis. @pre axis >= 0 and granule >= 1
DimCut cut_over(int axis, CutRule rule = CutRule::balanced, Index granule = 1);

/// The units of part c out of n when there are m. @pre n >= 1, 0 <= c < n, m >= 0
/// @post for balanced and ceil the parts c = 0 .. n-1 follow each other and cover [0, m) exactly
/// once
Interval part_of(CutRule rule, Index m, Index n, Index c);

/// What part of [0, extent) a rank with these mesh coordinates holds. `coordinates[i]` is the
/// coordinate on mesh axis i.
Interval cut(const DimCut& how, const Mesh& mesh, Index extent, const Dims& coordinates);

/// Parts along the cut: the product of its axes' sizes.
Index num_parts(const DimCut& how, const Mesh& mesh);

}  // namespace reshard
