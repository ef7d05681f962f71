// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <string>

namespace reshard {

/// A position along a dimension of a tensor, or an offset in elements.
using Index = std::int64_t;

/// The half-open set of indices [begin, end).
///
/// Invariant: begin <= end. Every empty interval is [0, 0), so that `==` is set equality.
class Interval {
 public:
  constexpr Interval() = default;
  /// @pre begin <= end
  constexpr Interval(Index begin, Index end)
      : begin_(begin < end ? begin : 0), end_(begin < end ? end : 0) {
    assert(begin <= end);
  }
  constexpr Index begin() const { return begin_; }
  constexpr Index end() const { return end_; }
  constexpr Index size() const { return end_ - begin_; }
  constexpr bool empty() const { return begin_ == end_; }
  friend constexpr bool operator==(Interval, Interval) = default;

 private:
  Index begin_ = 0;
  Index end_ = 0;
};

constexpr bool contains(Interval a, Index i) { return a.begin() <= i && i < a.end(); }

/// @post true <=> every index of `b` is in `a`
constexpr bool contains(Interval a, Interval b) {
  return b.empty() || (a.begin() <= b.begin() && b.end() <= a.end());
}

/// @post i is in the result <=> i is in `a` and i is in `b`
constexpr Interval intersect(Interval a, Interval b) {
  const Index begin = std::max(a.begin(), b.begin());
  const Index end = std::min(a.end(), b.end());
  return begin < end ? Interval{begin, end} : Interval{};
}

/// @post i is in `a` <=> i + by is in the result
constexpr Interval shift(Interval a, Index by) {
  return a.empty() ? Interval{} : Interval{a.begin() + by, a.end() + by};
}

/// "[0,128)"
std::string to_string(Interval a);

}  // namespace reshard
