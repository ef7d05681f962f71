// SPDX-License-Identifier: Apache-2.0
// Protects: messages from shared and from private memory arrive complete by every method, and
// revoked memory is not accepted as a message.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "reshard/memory/host_buffer.h"
#include "reshard/transport/shm/fd_passing.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard {
namespace {

const char* const kAllWays[] = {"mapped,readv", "mapped", "readv", "ring", "mapped,readv,passed"};

/// Runs tests with threads and with processes, by every method.
void run_all(int n, const RankBody& body) {
  for (const char* ways : kAllWays) {
    SCOPED_TRACE(ways);
    EXPECT_EQ(outcome(shm_threads(ways)(n, body)), "");
    EXPECT_EQ(outcome(shm_processes(ways)(n, body)), "");
  }
}

TEST(ShmMemory, messages_from_shared_memory_arrive_whole) {
  run_all(3, [](RankEnds& me) {
    const std::size_t sizes[] = {0, 1, 4096, 4097, 300'001, 5'000'003};
    auto memory = *HostBuffer::allocate(16 << 20, {.shared = true});
    for (int shift = 0; shift < me.size(); ++shift) {
      const Rank to{(me.rank().value() + shift) % me.size()};
      const Rank from{(me.rank().value() + me.size() - shift) % me.size()};
      std::vector<Send> sends;
      std::vector<Room> rooms;
      std::vector<Recv> recvs;
      std::span<std::byte> left = memory.bytes();
      for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
        std::ranges::copy(pattern(me.rank(), to, MessageId{i}, sizes[i]), left.begin());
        sends.push_back({to, MessageId{i}, left.first(sizes[i])});
        left = left.subspan(sizes[i]);
        rooms.emplace_back(from, MessageId{i}, sizes[i]);
      }
      for (Room& room : rooms) recvs.push_back(room.recv());
      EXPECT_EQ(outcome(step(*me.transport, sends, recvs)), "");
      for (const Room& room : rooms) EXPECT_TRUE(room.holds_pattern(me.rank()));
    }
  });
}

TEST(ShmMemory, buffers_that_come_after_the_group_are_mapped_too) {
  run_all(2, [](RankEnds& me) {
    const Rank peer{1 - me.rank().value()};
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::size_t bytes = (std::size_t{1} << 20) * (round % 3 + 1) + 17;
      auto memory = *HostBuffer::allocate(static_cast<Index>(bytes), {.shared = true});
      std::ranges::copy(pattern(me.rank(), peer, MessageId{round}, bytes), memory.data());
      const Send send{peer, MessageId{round}, memory.bytes()};
      Room room(peer, MessageId{round}, bytes);
      const Recv recv = room.recv();
      EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
      EXPECT_TRUE(room.holds_pattern(me.rank()));
    }
  });
}

TEST(ShmMemory, a_send_that_was_given_up_is_not_received_from_what_follows_it) {
  run_all(2, [](RankEnds& me) {
    constexpr std::size_t kBytes = std::size_t{8} << 20;
    const auto meet = [&] { EXPECT_EQ(outcome(me.control->barrier(patient())), ""); };
    auto memory = *HostBuffer::allocate(kBytes, {.shared = true});
    if (me.rank() == Rank{0}) {
      const Send given_up{Rank{1}, MessageId{1}, memory.bytes()};
      const Send kept{Rank{1}, MessageId{2}, memory.bytes()};
      auto one = me.transport->exchange({&given_up, 1}, {});
      auto two = me.transport->exchange({&kept, 1}, {});
      ASSERT_TRUE(one && two);
      one->reset();
      meet();
      EXPECT_EQ(outcome((*two)->wait(patient())), "");
    } else {
      meet();
      std::ranges::fill(memory.bytes(), std::byte{7});
      const Recv recvs[] = {{Rank{0}, MessageId{1}, memory.bytes().first(kBytes / 2)},
                            {Rank{0}, MessageId{2}, memory.bytes()}};
      // Both were announced before the first was withdrawn; the second takes another method.
      EXPECT_EQ(outcome(step(*me.transport, {}, {&recvs[1], 1})), "");
      EXPECT_TRUE(
          std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0}; }));
      expect_error(step(*me.transport, {}, {&recvs[0], 1}, brief()), Code::deadline, {"message 1"});
    }
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST(ShmMemory, memory_out_of_reach_is_said_to_be) {
  const auto body = [](RankEnds& me) {
    Bytes ordinary(100);
    auto shared = *HostBuffer::allocate(100, {.shared = true});
    EXPECT_TRUE(me.transport->capabilities().direct);
    EXPECT_EQ(outcome(me.transport->share(shared.bytes())), "");
    expect_error(me.transport->share(ordinary), Code::unsupported, {"rank", "shared buffer"});
  };
  EXPECT_EQ(outcome(shm_threads("mapped")(2, body)), "");
  const auto none = [](RankEnds& me) {
    auto shared = *HostBuffer::allocate(100, {.shared = true});
    EXPECT_FALSE(me.transport->capabilities().direct);
    expect_error(me.transport->share(shared.bytes()), Code::unsupported);
  };
  EXPECT_EQ(outcome(shm_threads("ring")(2, none)), "");
}

TEST(ShmMemory, a_peer_that_has_left_is_not_called_out_of_reach) {
  const std::uint64_t nonce = 0x5a17'0000'0000'0000 + static_cast<std::uint64_t>(getpid());
  shm::FdPassing asks;
  {
    shm::FdPassing listens;
    ASSERT_EQ(outcome(listens.listen(nonce)), "");
    EXPECT_EQ(outcome(asks.ask(Rank(3), nonce, true)), "");
  }
  expect_error(asks.ask(Rank(3), nonce, true), Code::aborted, {"rank 3 has left"});
  expect_error(asks.ask(Rank(3), nonce, false), Code::unsupported, {"rank 3", "namespace"});
}

TEST(ShmMemory, a_way_that_does_not_exist_is_refused_on_every_rank) {
  const OnlyWays only("mapped,telepathy");
  InprocGroup group = *InprocGroup::create(2);
  EXPECT_EQ(outcome(run_ranks(2,
                              [&](Rank rank) {
                                auto control = *group.control(rank);
                                expect_error(shm::make_transport(*control, {}), Code::unsupported,
                                             {"telepathy", "readv"});
                              })),
            "");
}

}  // namespace
}  // namespace reshard
