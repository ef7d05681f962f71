// SPDX-License-Identifier: Apache-2.0
// Protects: a control plane whose coordinator was stopped costs each caller its deadline once, and
// not again for each call that follows.
#include "reshard/transport/tcp/control.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "reshard/transport/rendezvous.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard::tcp {
namespace {

constexpr auto kSilent = "rank 0, which knows who is missing, does not answer";

/// A rank whose coordinator reads nothing and sends nothing.
struct Stopped {
  FileDescriptor coordinator;
  std::unique_ptr<TcpControl> rank;
  Stopped() {
    EXPECT_EQ(outcome(start_crypto()), "");
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    coordinator = FileDescriptor(ends[0]);
    rank = std::make_unique<TcpControl>(
        Rank(1), 2, TcpControl::Channel{FileDescriptor(ends[1]), {}}, WakeFd::make().value());
  }
};

TEST(TcpControl, waits_once_for_a_coordinator_that_was_stopped) {
  Stopped stopped;
  expect_error(stopped.rank->barrier(Deadline::after(std::chrono::seconds(0))), Code::deadline,
               {kSilent});
  // Without a deadline of their own these end only because the coordinator is known to be silent.
  expect_error(stopped.rank->barrier(Deadline::never()), Code::deadline, {kSilent});
  stopped.rank->abort("a deadline passed");
  expect_error(stopped.rank->quiesce(Deadline::never()), Code::deadline, {kSilent});
}

/// Rank 1 of a group of two that rank 0, of this process too, has aborted and left.
std::unique_ptr<ControlPlane> left_by_rank_0(const RendezvousFolder& folder) {
  const auto as = [&](int rank) {
    RendezvousOptions options;
    options.url = folder.url();
    options.rank = Rank(rank);
    options.size = 2;
    options.deadline = patient();
    return options;
  };
  auto other = std::async(std::launch::async, [&] { return join(as(1)); });
  auto first = join(as(0));
  auto stays = other.get();
  EXPECT_TRUE(first) << outcome(first);
  EXPECT_TRUE(stays) << outcome(stays);
  if (!first || !stays) return nullptr;
  (*first)->abort("a deadline passed");
  return std::move(*stays);
}

TEST(TcpControl, of_rank_0_does_not_wait_for_a_rank_of_an_aborted_group_that_was_stopped) {
  const RendezvousFolder folder;
  auto stopped = left_by_rank_0(folder);
  ASSERT_NE(stopped, nullptr);
  // Rank 1 never leaves, and nobody sets a deadline.
  expect_error(finish_serving(Deadline::never()), Code::deadline, {"have not left"});
  EXPECT_FALSE(stopped->status());
  stopped.reset();
  while (!finish_serving(patient())) std::this_thread::yield();  // Until it has left.
}

TEST(TcpControl, a_child_of_the_process_of_rank_0_serves_no_group) {
  const RendezvousFolder folder;
  auto stays = left_by_rank_0(folder);
  ASSERT_NE(stays, nullptr);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(finish_serving(Deadline::never()) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  stays.reset();
  while (!finish_serving(patient())) std::this_thread::yield();  // Until it has left.
}

}  // namespace
}  // namespace reshard::tcp
