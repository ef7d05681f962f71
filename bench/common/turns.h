// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/common/json_line.h"
#include "reshard/base/result.h"

namespace reshard::bench {

/// Measures seconds since its construction.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// One way to do the measured work.
struct Contender {
  std::string name;
  std::function<Result<>()> run;
};

/// When to measure: a fixed number of rounds, or one round per line of standard input until that
/// ends. The latter lets a driver alternate between programs: it prints "ready" once, and "done"
/// after each round.
class Rounds {
 public:
  explicit Rounds(Index count) : left_(count) {}
  static Rounds on_demand() { return Rounds(-1); }
  /// Waits for the next round; false if there is none.
  bool next();

 private:
  Index left_;
  bool begun_ = false;
};

/// Runs all contenders in turn in every round, after one warm-up round, so that changes on the
/// machine affect all alike. @return seconds[contender][round]
Result<std::vector<std::vector<double>>> by_turns(std::span<const Contender> contenders,
                                                  Rounds rounds);

/// Adds "seconds_<name>": [...] for each contender.
void add_seconds(JsonLine& line, std::span<const Contender> contenders,
                 const std::vector<std::vector<double>>& seconds);

/// The peak resident memory of this process so far. Bytes.
Index peak_rss_bytes();

}  // namespace reshard::bench
