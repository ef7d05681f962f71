// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "reshard/index/box.h"
#include "reshard/sharding/mesh.h"

namespace reshard {

/// How m units of a dimension are divided into n parts.
enum class CutRule : std::uint8_t {
  balanced,  ///< the first m mod n parts get one more unit: 10 over 4 = 3, 3, 2, 2.
  ceil,      ///< torch.chunk: ceil(m / n) each until none are left: 10 over 4 = 3, 3, 3, 1.
  spread,    ///< balanced if n <= m; otherwise part c is unit floor(c * m / n) (KV heads when tp
             ///< exceeds their number).
};

/// For a dimension that counts blocks of elements, such as scales: it is cut where the elements are
/// cut. A part has every block that its elements touch, so adjacent parts may share a block.
struct BlockCut {
  Index block = 0;     ///< elements per block; 0: the dimension counts elements.
  Index elements = 0;  ///< size of the dimension that is cut.
  Interval window;     ///< the elements whose blocks this dimension has.
  Index first = 0;     ///< the position of window.begin() in the block grid.
  /// Each part has a grid of its own: n elements have ceil(n / block) blocks, counted from 0,
  /// padded so that `before` + blocks is a multiple of `multiple`. Ignores window and first.
  bool own_grid = false;
  Index before = 0, multiple = 1;
  friend bool operator==(const BlockCut&, const BlockCut&) = default;
};

/// The blocks of a part with these elements. @pre blocks.block >= 1
Interval blocks_of(const BlockCut& blocks, Interval held);

/// How a dimension of a tensor is cut over axes of a mesh. Without axes every rank has the whole
/// dimension.
///
/// `sequential`: each axis in turn cuts the parts of the one before, major axis first, as DTensor
/// placements do. `flattened`: all axes form one axis, whose coordinate is their row-major index
/// with the first axis major. The dimension is cut at multiples of `granule` elements; the last
/// granule may be shorter.
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

/// The units of part c of n, out of m. @pre n >= 1, 0 <= c < n, m >= 0
/// @post for balanced and ceil the parts c = 0 .. n-1 are consecutive and cover [0, m) exactly once
Interval part_of(CutRule rule, Index m, Index n, Index c);

/// The part of [0, extent) of a rank with these mesh coordinates. `coordinates[i]` is the
/// coordinate on mesh axis i.
Interval cut(const DimCut& how, const Mesh& mesh, Index extent, const Dims& coordinates);

/// The number of parts: the product of the sizes of its axes.
Index num_parts(const DimCut& how, const Mesh& mesh);

}  // namespace reshard
