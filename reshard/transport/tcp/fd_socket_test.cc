// SPDX-License-Identifier: Apache-2.0
// Protects: the processes of one parent form a group over an unnamed socket, and nobody else can
// join.
#include "reshard/transport/tcp/fd_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard {
namespace {

/// The socket pair that a launcher creates for its ranks.
struct Ends {
  FileDescriptor first, others;
  Ends() {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()), 0);
    first = FileDescriptor(fds[0]);
    others = FileDescriptor(fds[1]);
  }
  RendezvousOptions join_as(Rank rank, int size) const {
    RendezvousOptions join;
    join.url = "fd://" + std::to_string((rank == Rank{0} ? first : others).get());
    join.rank = rank;
    join.size = size;
    join.deadline = patient();
    return join;
  }
};

TEST(Door, processes_of_one_parent_meet_without_a_name_or_a_secret) {
  const Ends ends;
  constexpr int kRanks = 5;
  EXPECT_EQ(outcome(run_processes(kRanks,
                                  [&](Rank rank) {
                                    auto me = join(ends.join_as(rank, kRanks));
                                    ASSERT_TRUE(me) << outcome(me);
                                    EXPECT_TRUE((*me)->barrier(patient()));
                                    (*me)->close();
                                  })),
            "");
}

TEST(Door, many_ranks_may_knock_before_rank_0_is_there) {
  const Ends ends;
  constexpr int kRanks = 200;
  ProcessEvent knocked;
  EXPECT_EQ(outcome(run_processes(2,
                                  [&](Rank process) {
                                    const bool zero = process == Rank{0};
                                    if (zero) knocked.wait();
                                    std::vector<std::thread> ranks;
                                    const int begin = zero ? 0 : 1, end = zero ? 1 : kRanks;
                                    for (int r = begin; r < end; ++r)
                                      ranks.emplace_back([&, r] {
                                        const auto me = join(ends.join_as(Rank{r}, kRanks));
                                        EXPECT_TRUE(me) << outcome(me);
                                      });
                                    if (!zero) knocked.happen();
                                    for (auto& one : ranks) one.join();
                                  })),
            "");
}

TEST(Door, a_rank_0_that_died_is_missed_until_the_deadline) {
  Ends ends;
  ends.first = FileDescriptor();
  RendezvousOptions as = ends.join_as(Rank{1}, 2);
  as.deadline = brief();
  expect_error(join(as), Code::deadline, {"rank 0 did not arrive"});
}

TEST(Door, what_is_no_such_socket_is_refused) {
  const FileDescriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto pair = tcp::socket_pair();
  ASSERT_TRUE(pair);
  for (const std::string& text : {std::string("-1"), std::string("999999"), std::string("x"),
                                  std::to_string(file.get()), std::to_string(pair->first.get())}) {
    RendezvousOptions as;
    as.url = "fd://" + text;
    as.size = 1;
    expect_error(join(as), Code::invalid_argument, {"not an open SOCK_SEQPACKET socket"});
  }
}

}  // namespace
}  // namespace reshard
