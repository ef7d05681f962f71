// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/index/box.h"

namespace reshard {

/// A union of disjoint boxes with equal rank.
///
/// Invariant: no box is empty, no two boxes intersect, no two can be merged along one dimension,
/// and boxes are sorted by `before`. Equal sets may consist of different boxes: compare with
/// `same_points`.
class Region {
 public:
  Region() = default;
  explicit Region(const Box& box);

  const std::vector<Box>& boxes() const { return boxes_; }
  bool empty() const { return boxes_.empty(); }
  Index volume() const;

  /// @pre all boxes have equal rank  @post a point is in *this afterwards <=> it was, or it is in
  /// `box`
  void add(const Box& box);
  /// @post a point is in *this afterwards <=> it was, and it is not in `box`
  void subtract(const Box& box);

 private:
  void normalise();
  std::vector<Box> boxes_;
};

/// The points of `a` that are not in `b`, as at most 2 * rank disjoint boxes. @pre equal ranks
std::vector<Box> difference(const Box& a, const Box& b);

/// @post a point is in the result <=> it is in both
Region intersect(const Region& a, const Region& b);

/// True if both regions have the same points, whatever boxes they consist of.
bool same_points(const Region& a, const Region& b);

/// "{[0,2)x[0,4), [4,6)x[0,4)}"
std::string to_string(const Region& region);

}  // namespace reshard
