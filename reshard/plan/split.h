// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/index/box.h"

namespace reshard {

/// Where a box may be cut in two: slices of its first dimension that has more than one index.
///
/// A byte position x of the box's row-major bytes becomes the nearest slice border, so that
/// consecutive byte ranges become consecutive, disjoint sub-boxes that cover it. Sub-byte elements
/// are cut at whole bytes only.
class Slices {
 public:
  Slices(const Box& box, int element_bits);
  /// The slices of the byte range [begin, end) of the box; may be empty. @pre 0 <= begin <= end <=
  /// bytes of the box
  Box of(Index begin, Index end) const;

 private:
  Index border(Index byte) const;
  Box box_;
  int dim_ = 0;
  Index count_ = 1, granule_ = 1, bytes_ = 0;
};

}  // namespace reshard
