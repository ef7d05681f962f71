// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/model/model_layout.h"

namespace reshard {

/// Calls f(element of the whole canonical tensor, row-major; element of the local tensor) for each
/// element of a fragment. Element by element, because code that judges plans and copies must be
/// simple.
template <class F>
void for_each_element(const ModelSpec& model, const Fragment& fragment, F&& f) {
  const Dims whole = row_major(model[fragment.tensor].shape);
  for (Index i = 0; i < fragment.box.volume(); ++i) {
    Index rest = i, canonical = 0, local = fragment.where.offset;
    for (int d = fragment.box.rank() - 1; d >= 0; --d) {
      const Index p = rest % fragment.box[d].size();
      rest /= fragment.box[d].size();
      canonical += (fragment.box[d].begin() + p) * whole[d];
      local += p * fragment.where.strides[d];
    }
    f(canonical, local);
  }
}

}  // namespace reshard
