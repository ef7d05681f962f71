// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/index/interval.h"

namespace reshard::trace {

/// When bytes moved through one resource: a link, or the threads of a rank.
class BusyTime {
 public:
  void add(std::int64_t begin_ns, std::int64_t end_ns, Index bytes);
  Index bytes() const { return bytes_; }
  /// Seconds in which at least one of the intervals was in progress.
  double seconds() const;
  /// The highest rate that the resource surely reached: of an eighth, a quarter, half or all of
  /// its bytes in consecutive intervals, from the first beginning to the last end. At least the
  /// bytes over seconds(). Bytes per second; 0 without bytes. A shorter
  /// stretch says little, because the end of an interval may be seen late.
  double best_rate() const;

 private:
  struct Span {
    std::int64_t begin = 0, end = 0;
    Index bytes = 0;
  };
  static double best_rate(const std::vector<Span>& by_end, Index least);

  std::vector<Span> spans_;
  Index bytes_ = 0;
};

}  // namespace reshard::trace
