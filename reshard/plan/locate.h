// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/base/check.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// The location of a box of a canonical tensor in a local tensor, in elements.
struct Located {
  SlotId slot;
  Strided where;
};

/// Calls f(Located) for each location on the rank that holds the whole box, in a fixed order.
template <class F>
void for_each_location(const ModelLayout& layout, TensorId tensor, Rank r, const Box& box, F&& f) {
  for (const auto& part_id : layout.parts_of(tensor)) {
    const auto found = layout.fragment(part_id, r);
    if (!found || !contains(found->box, box)) continue;
    Dims inside;
    for (int i = 0; i < box.rank(); ++i) inside.push_back(box[i].begin() - found->box[i].begin());
    f(Located{found->slot, at(found->where, inside)});
  }
}

/// The first location that for_each_location finds. @pre there is one: the box lies in a cell that
/// the rank holds
inline Located first_location(const ModelLayout& layout, TensorId tensor, Rank r, const Box& box) {
  std::optional<Located> first;
  for_each_location(layout, tensor, r, box, [&](const Located& l) {
    if (!first) first = l;
  });
  RESHARD_CHECK(first.has_value());
  return *first;
}

}  // namespace reshard
