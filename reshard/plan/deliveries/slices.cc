// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/deliveries/slices.h"

#include <algorithm>
#include <numeric>

#include "reshard/base/int128.h"

namespace reshard::deliveries {

Slices::Slices(const Box& box, Index bytes) : box_(&box), bytes_(bytes), slice_bits_(bytes * 8) {
  while (dim_ + 1 < box.rank() && box[dim_].size() == 1) ++dim_;
  if (box.rank() == 0) return;
  count_ = box[dim_].size();
  slice_bits_ /= count_;
  granule_ = 8 / std::gcd(slice_bits_, Index{8});
}

Index Slices::border(Index byte) const {
  if (byte == 0) return 0;
  if (byte == bytes_) return count_;
  // The nearest multiple of the granule to byte * count / bytes; halves go up.
  const Int128 unit = Int128{bytes_} * granule_;
  const auto nearest =
      static_cast<Index>((2 * Int128{byte} * count_ + unit) / (2 * unit)) * granule_;
  return std::min(nearest, count_);
}

Box Slices::box(Interval slices) const {
  if (slices.size() == count_) return *box_;
  if (box_->rank() == 0) return Box{Interval{}};
  return box_->with(dim_, shift(slices, (*box_)[dim_].begin()));
}

}  // namespace reshard::deliveries
