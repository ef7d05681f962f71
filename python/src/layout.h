// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python/src/values.h"

namespace reshard::python {

/// reshard.Layout: one side of a plan, and the model whose tensors it cuts.
struct Layout {
  std::shared_ptr<const Model> model;
  LayoutSide side;

  /// The layout of what memory holds: for a quantised layout, data and scales.
  const ModelLayout& stored() const { return *side.stored(); }
};

/// A rank of the layout. Throws InvalidArgumentError for any other.
Rank rank_in(const Layout& layout, RankArgument rank);

/// The local tensors of a rank as Python sees them. @pre the GIL is held
nb::list local_tensors_of(const Layout& layout, RankArgument rank);

}  // namespace reshard::python
