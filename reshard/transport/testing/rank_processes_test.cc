// SPDX-License-Identifier: Apache-2.0
// Protects: a failure in the process of a rank fails the test that started it, and no process
// remains.
#include "reshard/transport/testing/rank_processes_testutil.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace reshard {
namespace {

/// The failures that run() reports, in one text.
template <class Run>
std::string failures_of(Run run) {
  testing::TestPartResultArray parts;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &parts);
    run();
  }
  std::string text;
  for (int i = 0; i < parts.size(); ++i) text += std::string(parts.GetTestPartResult(i).message());
  return text;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST(RunProcesses, every_rank_is_a_process_of_its_own) {
  const pid_t parent = ::getpid();
  ProcessEvent all_here, go;
  EXPECT_EQ(outcome(run_processes(3,
                                  [&](Rank rank) {
                                    EXPECT_NE(::getpid(), parent);
                                    all_here.happen();
                                    // Nobody returns before all three run.
                                    if (rank == Rank{0}) {
                                      all_here.wait(3);
                                      for (int r = 0; r < 3; ++r) go.happen();
                                    }
                                    go.wait();
                                  })),
            "");
}

TEST(RunProcesses, failures_and_exceptions_come_back_with_their_rank) {
  const std::string text = failures_of([] {
    (void)run_processes(3, [](Rank rank) {
      EXPECT_NE(rank, Rank{1}) << "so it is";
      if (rank == Rank{2}) throw std::runtime_error("boom");
    });
  });
  expect_part(text, "rank 1: ");
  expect_part(text, "so it is");
  expect_part(text, "rank 2: exception: boom");
  EXPECT_EQ(text.find("rank 0"), std::string::npos) << text;
}

TEST(RunProcesses, a_rank_that_dies_is_a_failure_unless_it_was_to_be_killed) {
  const auto body = [](Rank rank) {
    if (rank == Rank{1}) ::raise(SIGKILL);
    if (rank == Rank{2}) ::raise(SIGTERM);
  };
  const std::string text = failures_of([&] { (void)run_processes(3, body, {.doomed = {1}}); });
  expect_part(text, "rank 2 died by signal 15");
  EXPECT_EQ(text.find("rank 1"), std::string::npos) << text;
  expect_part(failures_of([&] { (void)run_processes(2, [](Rank) {}, {.doomed = {0}}); }),
              "rank 0 was to be killed");
}

TEST(RunProcesses, ranks_that_hang_are_killed_and_named) {
  const ProcessEvent never;
  const auto hang = [&](Rank rank) {
    if (rank != Rank{1}) never.wait();
  };
  ProcessOptions options;
  options.limit = std::chrono::seconds(1);
  expect_part(failures_of([&] { (void)run_processes(3, hang, options); }),
              "have not returned: ranks 0, 2");
}

}  // namespace
}  // namespace reshard
