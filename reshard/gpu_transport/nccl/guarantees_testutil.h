// SPDX-License-Identifier: Apache-2.0
// The guarantees of transports that NCCL does not give.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace reshard::nccl {

/// Skips the test of the conformance suite that runs, if its guarantee is not given; true if so.
inline bool skips_what_nccl_does_not_give() {
  constexpr const char* kByOrder = "messages between two ranks match by order, not by id";
  constexpr const char* kEndsGroup = "a dropped event ends the group";
  static const std::map<std::string, std::string> not_given{
      {"posts_meet_in_whatever_order_they_come", kByOrder},
      {"random_traffic_in_overlapping_steps_arrives_whole", "its exchanges are no rounds"},
      {"a_deadline_names_what_is_missing_and_not_what_came", kByOrder},
      {"different_sizes_are_an_error_on_both_sides", "sizes are not compared"},
      {"a_dropped_event_gives_its_memory_back", kEndsGroup},
  };
  std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto reason = not_given.find(test.substr(0, test.find('/')));
  if (reason == not_given.end()) return false;
  [&] { GTEST_SKIP() << reason->second; }();
  return true;
}

}  // namespace reshard::nccl
