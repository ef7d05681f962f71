// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/layout_builder.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace reshard {
namespace {

RC_GTEST_PROP(LayoutBuilder, finds_the_ranks_with_given_coordinates, ()) {
  const auto num_axes = *rc::gen::inRange(0, kMaxDims + 1);
  std::vector<Axis> axes;
  for (int a = 0; a < num_axes; ++a)
    axes.push_back({std::string(1, static_cast<char>('a' + a)), *rc::gen::inRange<Index>(1, 4)});
  const Mesh mesh = *Mesh::make(axes, Rank(*rc::gen::inRange(0, 100)));
  LayoutBuilder builder("any", std::make_shared<const ModelSpec>());
  const MeshId id = builder.add_mesh(mesh);
  // Axes may be repeated, and coordinates may be beyond their axis: then no rank has them.
  std::vector<std::pair<int, Index>> fixed;
  for (int n = num_axes == 0 ? 0 : *rc::gen::inRange(0, 4); n > 0; --n)
    fixed.emplace_back(*rc::gen::inRange(0, num_axes), *rc::gen::inRange<Index>(0, 4));

  RankSet wanted;
  for (Index i = 0; i < mesh.size(); ++i) {
    const Rank r(static_cast<Rank::rep>(mesh.first().value() + i));
    bool in = true;
    for (const auto& [axis, coordinate] : fixed) in &= mesh.coordinate(r, axis) == coordinate;
    if (in) wanted.insert(r);
  }
  const RankSetId found = builder.ranks_where(id, fixed);
  RC_ASSERT(builder.rank_set(found) == wanted);
  RC_ASSERT(builder.ranks_where(id, fixed) == found);
}

}  // namespace
}  // namespace reshard
