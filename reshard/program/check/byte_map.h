// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <map>

#include "reshard/index/interval.h"

namespace reshard::check {

/// Values by byte of a buffer, in ranges of equal value. Bytes begin with T{}.
template <class T>
class ByteMap {
 public:
  /// Calls f(value&, begin, end) for the ranges that are together [begin, end); f may change the
  /// value. @pre begin < end
  template <class F>
  void update(Index begin, Index end, F&& f) {
    auto at = split(begin);
    const auto stop = split(end);
    for (; at != stop; ++at) f(at->second, at->first, std::next(at)->first);
    join(begin, end);
  }

  /// Calls f(value, begin, end) for all ranges but the last, which has no end.
  template <class F>
  void for_each(F&& f) const {
    for (auto at = ranges_.begin(); std::next(at) != ranges_.end(); ++at)
      f(at->second, at->first, std::next(at)->first);
  }

 private:
  using Ranges = std::map<Index, T>;
  typename Ranges::iterator split(Index at) {
    auto next = ranges_.upper_bound(at);
    const auto has = std::prev(next);
    return has->first == at ? has : ranges_.emplace_hint(next, at, has->second);
  }
  /// Joins ranges in [begin, end] that have become equal.
  void join(Index begin, Index end) {
    auto at = ranges_.find(begin);
    if (at != ranges_.begin()) --at;
    for (auto next = std::next(at); next != ranges_.end() && next->first <= end;
         next = std::next(at)) {
      if (next->second == at->second) {
        ranges_.erase(next);
      } else {
        at = next;
      }
    }
  }

  Ranges ranges_{{0, T{}}};  ///< by first byte.
};

}  // namespace reshard::check
