// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/split.h"

#include <numeric>

#include "reshard/base/int128.h"

namespace reshard {

Slices::Slices(const Box& box, int element_bits)
    : box_(box), bytes_(box.volume() * element_bits / 8) {
  while (dim_ + 1 < box.rank() && box[dim_].size() == 1) ++dim_;
  if (box.rank() == 0) return;
  count_ = box[dim_].size();
  const Index slice_bits = box.volume() / count_ * element_bits;
  granule_ = 8 / std::gcd(slice_bits, Index{8});
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

Box Slices::of(Index begin, Index end) const {
  const Interval slices{border(begin), border(end)};
  if (box_.rank() == 0) return slices.empty() ? Box{Interval{}} : box_;
  return box_.with(dim_, shift(slices, box_[dim_].begin()));
}

}  // namespace reshard
