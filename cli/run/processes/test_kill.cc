// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/test_kill.h"

#include <fmt/format.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string_view>

namespace reshard::cli {
namespace {

constexpr std::string_view kPoints[] = {"prepare", "start", "middle", "check",
                                        "commit",  "end",   "verify"};

}  // namespace

Result<TestKill> TestKill::of_environment(Rank me) {
  TestKill kill;
  const char* variable = std::getenv("RESHARD_TEST_KILL");
  if (variable == nullptr) return kill;
  std::string_view rest = variable;
  int rank = -1;
  if (rest.starts_with("rank=")) {
    rest.remove_prefix(5);
    const auto number = std::from_chars(rest.data(), rest.data() + rest.size(), rank);
    rest.remove_prefix(static_cast<std::size_t>(number.ptr - rest.data()));
    for (std::size_t i = 0; i < std::size(kPoints); ++i)
      if (rest.starts_with(",at=") && rest.substr(4) == kPoints[i])
        kill.point_ = static_cast<Point>(i + 1);
  }
  if (rank < 0 || kill.point_ == Point::never)
    return fail(Code::invalid_argument,
                fmt::format("environment: RESHARD_TEST_KILL={} must be rank=R,at=prepare, start, "
                            "middle, check, commit, end or verify",
                            variable));
  if (Rank(rank) != me) kill.point_ = Point::never;
  return kill;
}

void TestKill::at(Point point) const {
  if (point_ == point) std::raise(SIGKILL);
}

}  // namespace reshard::cli
