// SPDX-License-Identifier: Apache-2.0
// Protects: specifics of ranks that are threads: taking transports and control planes, and who
// copies.
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

std::string message(const auto& result) { return result ? "" : result.error().message; }

TEST(InprocGroup, sizes_that_make_no_sense_are_refused) {
  for (const int n : {0, -1, 65537, 1 << 30})
    EXPECT_NE(message(InprocGroup::create(n)).find("1 to 65536"), std::string::npos) << n;
  EXPECT_EQ(InprocGroup::create(3)->size(), 3);
}

TEST(InprocGroup, each_end_is_given_once) {
  auto group = *InprocGroup::create(2);
  auto transport = group.transport(Rank{1});
  auto control = group.control(Rank{1});
  EXPECT_TRUE(transport && control);
  EXPECT_NE(message(group.transport(Rank{1})).find("taken before"), std::string::npos);
  EXPECT_NE(message(group.control(Rank{1})).find("taken before"), std::string::npos);
  EXPECT_NE(message(group.transport(Rank{2})).find("ranks 0 to 1"), std::string::npos);
  EXPECT_NE(message(group.control(Rank{-1})).find("ranks 0 to 1"), std::string::npos);
}

TEST(InprocGroup, ends_and_events_outlive_the_group) {
  auto group = std::make_unique<InprocGroup>(*InprocGroup::create(1));
  auto transport = *group->transport(Rank{0});
  auto control = *group->control(Rank{0});
  group.reset();
  std::byte out{7}, in{0};
  const Send send{Rank{0}, MessageId{1}, {&out, 1}};
  const Recv recv{Rank{0}, MessageId{1}, {&in, 1}};
  auto event = *transport->exchange({&send, 1}, {&recv, 1});
  EXPECT_TRUE(event->wait(Deadline::never()));
  transport.reset();
  control.reset();
  EXPECT_TRUE(event->wait(Deadline::never()));
  EXPECT_EQ(in, std::byte{7});
}

TEST(InprocGroup, one_side_alone_moves_a_message_when_the_other_is_busy) {
  // Both ends in one thread: the sender never waits before the receiver is done.
  auto group = *InprocGroup::create(2);
  auto a = *group.transport(Rank{0}), b = *group.transport(Rank{1});
  std::vector<std::byte> out(3'000'000, std::byte{3}), in(out.size());
  const Send send{Rank{1}, MessageId{1}, out};
  const Recv recv{Rank{0}, MessageId{1}, in};
  auto sent = *a->exchange({&send, 1}, {});
  auto received = *b->exchange({}, {&recv, 1});
  EXPECT_TRUE(received->wait(Deadline::never()));
  EXPECT_EQ(in, out);
  EXPECT_EQ(sent->test(), true);
}

TEST(InprocGroup, a_side_that_waits_already_does_the_copy_when_the_other_only_posts) {
  auto group = *InprocGroup::create(2);
  EXPECT_TRUE(run_ranks(2, [&](Rank rank) {
    auto transport = *group.transport(rank);
    auto control = *group.control(rank);
    std::vector<std::byte> memory(100'000, rank == Rank{0} ? std::byte{3} : std::byte{0});
    for (std::uint64_t round = 0; round < 50; ++round) {
      const Send send{Rank{1}, MessageId{round}, memory};
      const Recv recv{Rank{0}, MessageId{round}, memory};
      // Rank 0 enters the barrier without waiting, so rank 1 must copy everything itself.
      auto event = rank == Rank{0} ? *transport->exchange({&send, 1}, {})
                                   : *transport->exchange({}, {&recv, 1});
      if (rank == Rank{1}) {
        EXPECT_TRUE(event->wait(Deadline::never()));
      }
      EXPECT_TRUE(control->barrier(Deadline::never()));
      EXPECT_EQ(event->test(), true);
    }
    EXPECT_EQ(memory, std::vector<std::byte>(memory.size(), std::byte{3}));
  }));
}

TEST(InprocGroup, a_test_moves_a_bounded_part) {
  auto group = *InprocGroup::create(1);
  auto transport = *group.transport(Rank{0});
  std::vector<std::byte> out(std::size_t{8} << 20, std::byte{3}), in(out.size());
  const Send send{Rank{0}, MessageId{1}, out};
  const Recv recv{Rank{0}, MessageId{1}, in};
  auto event = *transport->exchange({&send, 1}, {&recv, 1});
  EXPECT_EQ(event->test(), false);
  int more = 1;
  while (!*event->test()) ++more;
  EXPECT_GT(more, 4);
  EXPECT_EQ(in, out);
}

TEST(InprocGroup, collectives_in_different_order_are_an_error) {
  auto group = *InprocGroup::create(2);
  EXPECT_TRUE(run_ranks(2, [&](Rank rank) {
    auto control = *group.control(rank);
    const auto result = rank == Rank{0}
                            ? control->barrier(Deadline::never())
                            : control->all_gather({}, Deadline::never()).map([](auto&&) {});
    // The second rank gets the error; the first learns of it by the abort that must follow.
    EXPECT_FALSE(result);
    if (result.error().code == Code::invalid_argument) {
      EXPECT_NE(result.error().message.find("same order"), std::string::npos);
      control->abort(result.error().message);
    } else {
      EXPECT_EQ(result.error().code, Code::aborted);
    }
    EXPECT_TRUE(control->quiesce(Deadline::never()));
  }));
}

}  // namespace
}  // namespace reshard
