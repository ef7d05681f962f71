// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/index/box.h"

namespace reshard::deliveries {

/// Cuts a box at slices of its first dimension that has more than one index.
///
/// A byte position of the box's row-major bytes is mapped to the nearest slice boundary, so
/// consecutive byte ranges become consecutive, disjoint sub-boxes that cover the box. Sub-byte
/// elements are cut only at whole bytes.
class Slices {
 public:
  /// @pre the box is not empty, has that many bytes, and outlives this
  Slices(const Box& box, Index bytes);
  /// The slices of the byte range [begin, end) of the box; may be empty. @pre 0 <= begin <= end <=
  /// bytes of the box
  Interval range(Index begin, Index end) const { return {border(begin), border(end)}; }
  Box box(Interval slices) const;
  Index bytes(Interval slices) const { return slices.size() * slice_bits_ / 8; }

 private:
  Index border(Index byte) const;
  const Box* box_;
  int dim_ = 0;
  Index count_ = 1, granule_ = 1, bytes_ = 0, slice_bits_ = 0;
};

}  // namespace reshard::deliveries
