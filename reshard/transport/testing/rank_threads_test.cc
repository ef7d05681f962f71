// SPDX-License-Identifier: Apache-2.0
// Protects: the test harness reports failures and does not hang.
#include "reshard/transport/testing/rank_threads_testutil.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace reshard {
namespace {

TEST(RunRanks, every_rank_runs_once_at_the_same_time) {
  std::atomic<int> arrived{0};
  const auto result = run_ranks(5, [&](Rank rank) {
    arrived += 1 << (4 * rank.value());
    arrived.notify_all();
    // Returns only if all five run together.
    for (int seen = arrived; seen != 0x11111; seen = arrived) arrived.wait(seen);
  });
  EXPECT_TRUE(result);
}

TEST(RunRanks, errors_and_exceptions_come_back_with_their_rank) {
  const auto error = run_ranks(3, [](Rank rank) -> Result<> {
    if (rank == Rank{1}) return fail(Code::corrupt, "bad bytes");
    return {};
  });
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().code, Code::corrupt);
  EXPECT_EQ(error.error().message, "rank 1: bad bytes");

  const auto thrown = run_ranks(3, [](Rank rank) {
    if (rank == Rank{2}) throw std::runtime_error("boom");
  });
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().message, "rank 2: exception: boom");
}

TEST(RunRanksDeathTest, a_hanging_rank_ends_the_program_with_its_number) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)run_ranks(
                   3,
                   [](Rank rank) {
                     std::atomic<bool> never{false};
                     if (rank == Rank{1}) never.wait(false);
                   },
                   std::chrono::seconds(1)),
               "have not returned: 1");
}

}  // namespace
}  // namespace reshard
