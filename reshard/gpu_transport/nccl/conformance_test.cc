// SPDX-License-Identifier: Apache-2.0
// Protects: NCCL keeps the guarantees of every transport, but for those that it names.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "reshard/gpu_transport/nccl/nccl_group_testutil.h"
#include "reshard/transport/testing/conformance_testutil.h"

namespace reshard::nccl {
namespace {

constexpr const char* kByOrder = "messages between two ranks match by order, not by id";
constexpr const char* kEndsGroup = "a dropped event ends the group";

/// The tests of the suite whose guarantee this transport does not give, and why.
const std::map<std::string, std::string> kNotGiven{
    {"posts_meet_in_whatever_order_they_come", kByOrder},
    {"random_traffic_in_overlapping_steps_arrives_whole", kByOrder},
    {"a_deadline_names_what_is_missing_and_not_what_came", kByOrder},
    {"different_sizes_are_an_error_on_both_sides", "sizes are not compared"},
    {"a_dropped_event_gives_its_memory_back", kEndsGroup},
};

void skip(const std::string& why) { GTEST_SKIP() << why; }

Result<> run(int n, const RankBody& body) {
  std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  test = test.substr(0, test.find('/'));
  const auto reason = kNotGiven.find(test);
  if (reason == kNotGiven.end()) return run_nccl_ranks(n, body);
  skip(reason->second);
  return {};
}

const TransportUnderTest kNccl{"nccl", run};
RESHARD_TEST_TRANSPORT(Nccl, kNccl);

}  // namespace
}  // namespace reshard::nccl
