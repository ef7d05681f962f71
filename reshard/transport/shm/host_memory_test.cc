// SPDX-License-Identifier: Apache-2.0
// Protects: with any transport for messages, ranks of one host can access each other's memory,
// mapped or not, and a transport is unchanged if that is not permitted.
#include "reshard/transport/shm/host_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "reshard/memory/host_buffer.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard {
namespace {

/// A transport without memory access, extended by the methods in `ways`.
Result<> run_with(const char* ways, int n, const RankBody& body, ProcessOptions options = {}) {
  const auto make = [ways](ControlPlane& control) -> Result<std::unique_ptr<Transport>> {
    std::unique_ptr<Transport> messages;
    {
      const OnlyWays none("ring");
      messages = RESHARD_TRY(shm::make_transport(control, {}));
    }
    const OnlyWays only(ways);
    return shm::with_direct_access(std::move(messages), control, {});
  };
  return run_ranks_as_processes(n, make, body, options);
}

/// Every rank reads the memory of the next, through its address if mapped, and with get().
void read_the_next(RankEnds& me, bool shared, bool mapped) {
  constexpr std::size_t kBytes = 100'000;
  const Rank next{(me.rank().value() + 1) % me.size()};
  const auto content = [](Rank r) { return pattern(r, r, MessageId{1}, kBytes); };
  auto memory = *HostBuffer::allocate(kBytes, {.shared = shared});
  std::ranges::copy(content(me.rank()), memory.data());
  const auto key = me.transport->share(memory.bytes());
  ASSERT_TRUE(key) << outcome(key);
  const auto keys = me.control->all_gather(*key, patient());
  ASSERT_TRUE(keys) << outcome(keys);
  const auto there = me.transport->open(next, (*keys)[next.index()]);
  ASSERT_TRUE(there) << outcome(there);
  EXPECT_EQ(there->address != nullptr, mapped);
  Bytes got(kBytes);
  const Get all{&*there, 0, got};
  EXPECT_EQ(outcome(me.transport->get({&all, 1})), "");
  EXPECT_TRUE(got == content(next));
  if (mapped) {
    EXPECT_TRUE(std::ranges::equal(content(next), std::span(there->address, kBytes)));
  }
  EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
}

TEST(HostMemory, is_reached_by_every_way_that_is_allowed) {
  struct Way {
    const char* ways;
    bool shared, mapped;
  };
  for (const Way& way : {Way{"mapped,readv", true, true}, Way{"mapped,readv", false, false},
                         Way{"mapped", true, true}, Way{"readv", true, false},
                         Way{"mapped,readv,passed", true, true}}) {
    SCOPED_TRACE(way.ways);
    const auto body = [&](RankEnds& me) {
      EXPECT_TRUE(me.transport->capabilities().direct);
      read_the_next(me, way.shared, way.mapped);
    };
    EXPECT_EQ(outcome(run_with(way.ways, 3, body)), "");
  }
}

TEST(HostMemory, messages_go_on_as_before) {
  const auto body = [](RankEnds& me) {
    const Rank peer{1 - me.rank().value()};
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{17}, std::size_t{3'000'001}}) {
      const Bytes payload = pattern(me.rank(), peer, MessageId{bytes}, bytes);
      Room room(peer, MessageId{bytes}, bytes);
      const Send send{peer, MessageId{bytes}, payload};
      const Recv recv = room.recv();
      EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
      EXPECT_TRUE(room.holds_pattern(me.rank()));
    }
  };
  EXPECT_EQ(outcome(run_with("mapped,readv", 2, body)), "");
}

TEST(HostMemory, is_not_there_where_it_is_forbidden) {
  const auto body = [](RankEnds& me) {
    EXPECT_EQ(me.transport->capabilities(), Capabilities{.message = true});
    Bytes memory(64);
    expect_error(me.transport->share(memory), Code::unsupported);
  };
  EXPECT_EQ(outcome(run_with("ring", 2, body)), "");
}

TEST(HostMemory, is_not_read_after_close_or_an_abort) {
  const auto body = [](RankEnds& me) {
    Bytes memory(64), into(8);
    const auto key = me.transport->share(memory);
    const auto own = me.transport->open(me.rank(), *key);
    ASSERT_TRUE(own) << outcome(own);
    const Get piece{&*own, 0, into}, beyond{&*own, 60, into};
    expect_error(me.transport->get({&beyond, 1}), Code::invalid_argument);
    expect_error(me.transport->open(Rank{2}, *key), Code::invalid_argument, {"ranks 0 to 1"});
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    me.control->abort("enough");
    expect_error(me.transport->get({&piece, 1}), Code::aborted, {"enough"});
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
    me.transport->close();
    expect_error(me.transport->get({&piece, 1}), Code::invalid_argument, {"close"});
    expect_error(me.transport->share(memory), Code::invalid_argument, {"close"});
  };
  EXPECT_EQ(outcome(run_with("mapped,readv", 2, body)), "");
}

TEST(HostMemory, of_a_killed_process_is_an_error_that_names_it) {
  ProcessOptions killed;
  killed.doomed = {1};
  const auto body = [](RankEnds& me) {
    Bytes memory(64), into(8);
    const auto key = me.transport->share(memory);
    const auto keys = me.control->all_gather(*key, patient());
    ASSERT_TRUE(keys) << outcome(keys);
    const auto there = me.transport->open(Rank{1}, (*keys)[1]);
    ASSERT_TRUE(there) << outcome(there);
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    if (me.rank() == Rank{1}) raise(SIGKILL);
    expect_error(me.control->barrier(patient()), Code::aborted, {"rank 1"});
    const Get piece{&*there, 0, into};
    expect_error(me.transport->get({&piece, 1}), Code::aborted, {"rank 1"});
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  };
  EXPECT_EQ(outcome(run_with("readv", 3, body, killed)), "");
}

}  // namespace
}  // namespace reshard
