// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "reshard/index/interval.h"

namespace reshard::cli {

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// Most resident memory that this process had so far, in bytes.
Index peak_rss_bytes();

/// Memory that can be had without swapping, in bytes: the system's, or what a control group leaves
/// of it. 0 when the system does not tell.
Index available_memory();

/// `wanted`, or one per core that this process may use when it is 0.
int num_threads(int wanted);

/// Writes to standard output; main() checks that it arrived.
void print(const std::string& text);

}  // namespace reshard::cli
