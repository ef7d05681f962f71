// SPDX-License-Identifier: Apache-2.0
// Protects: whatever fails, every wait ends with the reason, and no memory is in use any more.
#pragma once

#include "reshard/transport/testing/conformance_messages_testutil.h"

namespace reshard {

/// Receives (or sends) a single message of `bytes`.
inline Result<> receive(RankEnds& me, Rank from, MessageId id, std::size_t bytes,
                        Deadline deadline) {
  Room room(from, id, bytes, me.memory.recvs);
  const Recv recv = room.recv();
  return step(*me.transport, {}, {&recv, 1}, deadline);
}
inline Result<> send(RankEnds& me, Rank to, MessageId id, std::size_t bytes, Deadline deadline) {
  const Block payload(me.memory.sends, pattern(me.rank(), to, id, bytes));
  const Send message{to, id, payload.bytes()};
  return step(*me.transport, {&message, 1}, {}, deadline);
}

TEST_P(TransportFailures, different_sizes_are_an_error_on_both_sides) {
  for (const bool receiver_first : {false, true}) {
    run(2, [&](RankEnds& me) {
      const bool receiver = me.rank() == Rank{1};
      const auto meet = [&] { EXPECT_EQ(outcome(me.control->barrier(patient())), ""); };
      if (receiver != receiver_first) meet();
      const Block memory(receiver ? me.memory.recvs : me.memory.sends, receiver ? 64 : 100);
      const Recv recv{Rank{0}, MessageId{77}, memory.bytes()};
      const Send send{Rank{1}, MessageId{77}, memory.bytes()};
      auto event = receiver ? me.transport->exchange({}, {&recv, 1})
                            : me.transport->exchange({&send, 1}, {});
      ASSERT_TRUE(event) << outcome(event);
      if (receiver == receiver_first) meet();
      expect_error((*event)->wait(patient()), Code::invalid_argument,
                   {"77", "100", "64", "rank 0", "rank 1"});
      expect_error((*event)->test(), Code::invalid_argument, {"77"});
    });
  }
}

TEST_P(TransportFailures, a_receive_without_a_send_ends_at_the_deadline_and_names_it) {
  run(3, [](RankEnds& me) {
    if (me.rank() == Rank{1})
      expect_error(receive(me, Rank{2}, MessageId{4711}, 5, brief()), Code::deadline,
                   {"4711", "rank 2"});
    (void)me.control->quiesce(patient());
  });
}

TEST_P(TransportFailures, a_send_without_a_receive_ends_at_the_deadline_and_names_it) {
  run(3, [](RankEnds& me) {
    // Large, so that no backend can complete it by buffering.
    if (me.rank() == Rank{1}) {
      expect_error(send(me, Rank{2}, MessageId{4711}, std::size_t{32} << 20, brief()),
                   Code::deadline, {"4711", "rank 2"});
    }
    (void)me.control->quiesce(patient());
  });
}

TEST_P(TransportFailures, a_deadline_names_what_is_missing_and_not_what_came) {
  run(2, [](RankEnds& me) {
    if (me.rank() == Rank{0}) {
      for (const std::uint64_t id : {100U, 300U})
        EXPECT_EQ(outcome(send(me, Rank{1}, MessageId{id}, 10, patient())), "");
    } else {
      Traffic traffic(me);
      for (const std::uint64_t id : {100U, 200U}) traffic.recv(Rank{0}, MessageId{id}, 10);
      auto event = me.transport->exchange({}, traffic.recvs());
      ASSERT_TRUE(event) << outcome(event);
      // Message 300 implies message 100, which its sender waited for before.
      EXPECT_EQ(outcome(receive(me, Rank{0}, MessageId{300}, 10, patient())), "");
      expect_error((*event)->wait(brief()), Code::deadline, {"message 200", "rank 0"});
    }
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST_P(TransportFailures, an_id_used_twice_at_once_is_an_error) {
  run(2, [](RankEnds& me) {
    const Block a(me.memory.recvs, 8), b(me.memory.recvs, 8);
    const Recv recvs[] = {{Rank{1}, MessageId{5}, a.bytes()}, {Rank{1}, MessageId{5}, b.bytes()}};
    if (me.rank() == Rank{0}) {
      const auto result = step(*me.transport, {}, recvs, brief());
      EXPECT_FALSE(result);
      EXPECT_NE(outcome(result).find('5'), std::string::npos) << outcome(result);
    }
    (void)me.control->quiesce(patient());
  });
}

TEST_P(TransportFailures, ranks_outside_the_group_are_refused) {
  run(2, [](RankEnds& me) {
    for (const int r : {-1, 2, 1 << 30}) {
      expect_error(send(me, Rank{r}, MessageId{0}, 1, patient()), Code::invalid_argument,
                   {std::to_string(r), "0 to 1"});
      expect_error(receive(me, Rank{r}, MessageId{0}, 1, patient()), Code::invalid_argument);
    }
  });
}

TEST_P(TransportFailures, use_after_close_is_refused) {
  run(1, [](RankEnds& me) {
    me.transport->close();
    me.transport->close();
    expect_error(me.transport->exchange({}, {}), Code::invalid_argument, {"close"});
    Bytes memory(8);
    EXPECT_FALSE(me.transport->share(memory));
    EXPECT_FALSE(me.transport->open(Rank{0}, RemoteKey(32)));
    me.control->close();
    me.control->close();
    expect_error(me.control->barrier(patient()), Code::invalid_argument, {"close"});
    expect_error(me.control->all_gather({}, patient()), Code::invalid_argument);
    expect_error(me.control->quiesce(patient()), Code::invalid_argument);
  });
}

TEST_P(TransportFailures, an_undone_event_ends_when_its_transport_goes) {
  run(2, [](RankEnds& me) {
    const Block memory(me.memory.recvs, 8);
    const Rank peer{1 - me.rank().value()};
    const Recv recv{peer, MessageId{1}, memory.bytes()};
    auto event = me.transport->exchange({}, {&recv, 1});
    ASSERT_TRUE(event) << outcome(event);
    me.transport.reset();
    expect_error((*event)->wait(Deadline::never()), Code::aborted);
  });
}

TEST_P(TransportFailures, a_dropped_event_gives_its_memory_back) {
  run(2, [](RankEnds& me) {
    const Rank peer{1 - me.rank().value()};
    {
      const Block memory(me.memory.recvs, 1000);
      const Recv recv{peer, MessageId{1}, memory.bytes()};
      EXPECT_TRUE(me.transport->exchange({}, {&recv, 1}));
    }
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    // The peer's message must not be written there any more (a sanitizer would detect it).
    const Block payload(me.memory.sends, 1000);
    const Send message{peer, MessageId{1}, payload.bytes()};
    auto event = me.transport->exchange({&message, 1}, {});
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    ASSERT_TRUE(event) << outcome(event);
    EXPECT_FALSE((*event)->wait(brief()));
    (void)me.control->quiesce(patient());
  });
}

TEST_P(TransportFailures, a_peer_that_left_before_fails_the_messages_with_it) {
  run(3, [](RankEnds& me) {
    if (me.rank() == Rank{2}) me.transport.reset();
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    if (!me.transport) return;
    const bool receiver = me.rank() == Rank{0};
    const auto result = receiver ? receive(me, Rank{2}, MessageId{1}, 8, Deadline::never())
                                 : send(me, Rank{2}, MessageId{1}, 8, Deadline::never());
    expect_error(result, Code::aborted, {"rank 2"});
  });
}

TEST_P(TransportFailures, a_peer_that_leaves_fails_those_who_wait_for_it) {
  // No order is enforced: over the rounds the peer leaves before, while and after the others start
  // to wait.
  for (int round = 0; round < 10; ++round) {
    run(3, [](RankEnds& me) {
      if (me.rank() == Rank{2}) return;
      const bool receiver = me.rank() == Rank{0};
      const auto result = receiver ? receive(me, Rank{2}, MessageId{1}, 8, Deadline::never())
                                   : send(me, Rank{2}, MessageId{1}, 8, Deadline::never());
      expect_error(result, Code::aborted, {"rank 2"});
      expect_error(me.control->barrier(Deadline::never()), Code::aborted, {"rank 2"});
      EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
    });
  }
}

TEST_P(TransportFailures, a_rank_that_has_finished_leaves_without_harm) {
  run(3, [](RankEnds& me) {
    if (me.rank() == Rank{1}) return;
    const auto result = me.rank() == Rank{0}
                            ? send(me, Rank{2}, MessageId{1}, 1'000'000, patient())
                            : receive(me, Rank{0}, MessageId{1}, 1'000'000, patient());
    EXPECT_EQ(outcome(result), "");
  });
}

TEST_P(TransportFailures, an_abort_ends_all_waits_with_its_rank_and_reason) {
  run(5, [](RankEnds& me) {
    if (me.rank() == Rank{3}) {
      me.control->abort("out of paper");
      me.control->abort("a later reason");
    }
    const std::vector<std::string> parts = {"rank 3", "out of paper"};
    const auto result = me.rank() == Rank{0}
                            ? me.control->barrier(Deadline::never())
                            : receive(me, Rank{0}, MessageId{1}, 8, Deadline::never());
    expect_error(result, Code::aborted, parts);
    // And all later calls.
    expect_error(me.transport->exchange({}, {}), Code::aborted, parts);
    expect_error(me.control->all_gather({}, Deadline::never()), Code::aborted, parts);
    expect_error(me.control->status(), Code::aborted, parts);
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST_P(TransportFailures, another_thread_can_abort_a_rank_that_waits) {
  run(2, [](RankEnds& me) {
    if (me.rank() == Rank{0}) {
      std::jthread watcher([&] { me.control->abort("cancelled by the user"); });
      expect_error(receive(me, Rank{1}, MessageId{1}, 8, Deadline::never()), Code::aborted,
                   {"rank 0", "cancelled by the user"});
    } else {
      expect_error(me.control->barrier(Deadline::never()), Code::aborted,
                   {"cancelled by the user"});
    }
  });
}

TEST_P(TransportFailures, memory_is_free_after_an_abort_in_the_middle_of_a_message) {
  for (int round = 0; round < 5; ++round) {
    run(3, [&](RankEnds& me) {
      // Freed when the event is done: a sanitizer or the guard bytes detect a copy that continues.
      const Rank next{(me.rank().value() + 1) % 3}, previous{(me.rank().value() + 2) % 3};
      const std::size_t bytes = std::size_t{8} << 20;
      Traffic traffic(me);
      traffic.send(next, MessageId{1}, bytes);
      traffic.recv(previous, MessageId{1}, bytes);
      auto event = me.transport->exchange(traffic.sends, traffic.recvs());
      if (event && me.rank() == Rank{round % 3}) {
        (void)(*event)->test();
        me.control->abort("enough");
      }
      const Result<> result =
          event ? (*event)->wait(Deadline::never()) : Result<>(tl::unexpected(event.error()));
      if (result) {
        EXPECT_EQ(traffic.wrong(), 0U);
      } else {
        expect_error(result, Code::aborted, {"enough"});
      }
      EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
    });
  }
}

}  // namespace reshard
