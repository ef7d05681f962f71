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
  /// The highest rate between ends of intervals with at least an eighth of the bytes between them.
  /// Bytes per second; 0 without bytes.
  double fastest_eighth() const;

 private:
  struct Span {
    std::int64_t begin = 0, end = 0;
    Index bytes = 0;
  };
  std::vector<Span> spans_;
  Index bytes_ = 0;
};

}  // namespace reshard::trace
