// SPDX-License-Identifier: Apache-2.0
#include "bench/common/turns.h"

#include <sys/resource.h>

#include <cstdio>
#include <iostream>

namespace reshard::bench {

bool Rounds::next() {
  if (left_ >= 0) return left_-- > 0;
  std::printf("%s\n", begun_ ? "done" : "ready");
  std::fflush(stdout);
  begun_ = true;
  std::string line;
  return static_cast<bool>(std::getline(std::cin, line));
}

Result<std::vector<std::vector<double>>> by_turns(std::span<const Contender> contenders,
                                                  Rounds rounds) {
  for (const Contender& c : contenders) RESHARD_TRY(c.run());
  std::vector<std::vector<double>> seconds(contenders.size());
  while (rounds.next()) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const Stopwatch watch;
      RESHARD_TRY(contenders[i].run());
      seconds[i].push_back(watch.seconds());
    }
  }
  return seconds;
}

void add_seconds(JsonLine& line, std::span<const Contender> contenders,
                 const std::vector<std::vector<double>>& seconds) {
  for (std::size_t i = 0; i < contenders.size(); ++i)
    line.add("seconds_" + contenders[i].name, seconds[i]);
}

Index peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return Index{usage.ru_maxrss} * 1024;
}

}  // namespace reshard::bench
