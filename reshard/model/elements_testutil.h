// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/model/model_layout.h"

namespace reshard {

/// Calls f(element of the whole canonical tensor, row-major; element of the local tensor) for each
/// element of a fragment. Element by element, because code that judges plans and copies must be
/// simple; from plain arrays, which ThreadSanitizer does not watch.
template <class F>
void for_each_element(const ModelSpec& model, const Fragment& fragment, F&& f) {
  const Dims whole = row_major(model[fragment.tensor].shape);
  const int rank = fragment.box.rank();
  const Index volume = fragment.box.volume();
  Index size[kMaxDims], at[kMaxDims], of_whole[kMaxDims], of_local[kMaxDims];
  Index canonical = 0, local = fragment.where.offset;
  for (int d = 0; d < rank; ++d) {
    size[d] = fragment.box[d].size();
    at[d] = 0;
    of_whole[d] = whole[d];
    of_local[d] = fragment.where.strides[d];
    canonical += fragment.box[d].begin() * of_whole[d];
  }
  for (Index i = 0; i < volume; ++i) {
    f(canonical, local);
    for (int d = rank - 1; d >= 0; --d) {
      canonical += of_whole[d];
      local += of_local[d];
      if (++at[d] < size[d]) break;
      canonical -= size[d] * of_whole[d];
      local -= size[d] * of_local[d];
      at[d] = 0;
    }
  }
}

}  // namespace reshard
