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

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

/// One way to do the work that is measured.
struct Contender {
  std::string name;
  std::function<Result<>()> run;
};

/// When to measure: a number of rounds, or one round for each line on standard input until that
/// ends. The latter lets a driver take turns between programs: "ready" is printed once and "done"
/// after each round.
class Rounds {
 public:
  explicit Rounds(Index count) : left_(count) {}
  static Rounds on_demand() { return Rounds(-1); }
  /// Waits for the next round; false when there is none.
  bool next();

 private:
  Index left_;
  bool begun_ = false;
};

/// Runs the contenders one after the other in every round, after one round that does not count, so
/// that what changes on the machine meanwhile meets all alike. Seconds: [contender][round].
Result<std::vector<std::vector<double>>> by_turns(std::span<const Contender> contenders,
                                                  Rounds rounds);

/// Adds "seconds_<name>": [...] for each contender.
void add_seconds(JsonLine& line, std::span<const Contender> contenders,
                 const std::vector<std::vector<double>>& seconds);

/// Most resident memory that this process had so far. Bytes.
Index peak_rss_bytes();

}  // namespace reshard::bench
