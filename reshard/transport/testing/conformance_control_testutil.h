// SPDX-License-Identifier: Apache-2.0
// Protects: ranks agree, or all learn that they do not; shared memory is the memory of its owner.
#pragma once

#include "reshard/memory/host_buffer.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

TEST_P(TransportControl, ends_know_their_place) {
  run(3, [](RankEnds& me) {
    EXPECT_EQ(me.transport->size(), 3);
    EXPECT_EQ(me.control->size(), 3);
    EXPECT_EQ(me.control->rank(), me.transport->rank());
    EXPECT_EQ(me.transport->name(), GetParam().name);
    EXPECT_EQ(outcome(me.control->status()), "");
  });
}

TEST_P(TransportControl, all_gather_gives_what_each_rank_gave) {
  for (const int n : {1, 2, 5, 8}) {
    run(n, [&](RankEnds& me) {
      for (int round = 0; round < 100; ++round) {
        const auto what = [&](int rank) {
          return pattern(Rank{rank}, Rank{0}, MessageId{static_cast<std::uint64_t>(round)},
                         static_cast<std::size_t>((rank * 37 + round) % 50));
        };
        const auto all = me.control->all_gather(what(me.rank().value()), patient());
        ASSERT_TRUE(all) << outcome(all);
        ASSERT_EQ(all->size(), static_cast<std::size_t>(n));
        for (int r = 0; r < n; ++r) EXPECT_EQ((*all)[static_cast<std::size_t>(r)], what(r));
      }
    });
  }
}

TEST_P(TransportControl, all_gather_into_gives_what_each_rank_gave) {
  for (const int n : {1, 2, 5, 8}) {
    run(n, [&](RankEnds& me) {
      for (int round = 0; round < 100; ++round) {
        const auto bytes = static_cast<std::size_t>(round * 11 % 130);
        const auto what = [&](int rank) {
          return pattern(Rank{rank}, Rank{0}, MessageId{static_cast<std::uint64_t>(round)}, bytes);
        };
        Bytes all(static_cast<std::size_t>(n) * bytes), want;
        for (int r = 0; r < n; ++r) {
          const Bytes part = what(r);
          want.insert(want.end(), part.begin(), part.end());
        }
        ASSERT_EQ(outcome(me.control->all_gather_into(what(me.rank().value()), all, patient())),
                  "");
        ASSERT_EQ(all, want) << "round " << round;
        if (round % 3 != 0) continue;
        ASSERT_EQ(outcome(me.control->barrier(patient())), "");
      }
    });
  }
}

TEST_P(TransportControl, all_gather_into_names_a_rank_that_gives_another_number_of_bytes) {
  run(3, [](RankEnds& me) {
    for (const bool odd : {true, false, true}) {
      const Bytes mine(odd && me.rank() == Rank{1} ? 7 : 8, std::byte{5});
      Bytes all(3 * mine.size());
      const auto done = me.control->all_gather_into(mine, all, patient());
      if (!odd) {
        ASSERT_EQ(outcome(done), "");
      } else {
        expect_error(done, Code::invalid_argument,
                     {me.rank() == Rank{1} ? "rank 0 gives 8 bytes and this rank 7"
                                           : "rank 1 gives 7 bytes and this rank 8"});
      }
    }
    Bytes all(23);
    expect_error(me.control->all_gather_into(Bytes(8), all, patient()), Code::invalid_argument,
                 {"the output has 23 bytes; 8 bytes from each of 3 ranks need 24"});
    EXPECT_EQ(outcome(me.control->barrier(patient())), "") << "nobody has come to it";
  });
}

TEST_P(TransportControl, a_barrier_nobody_comes_to_names_the_absent) {
  run(4, [](RankEnds& me) {
    if (me.rank() == Rank{0})
      expect_error(me.control->barrier(brief()), Code::deadline, {"1, 2, 3"});
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST_P(TransportControl, a_rank_that_closed_fails_the_collectives_of_the_others) {
  run(3, [](RankEnds& me) {
    if (me.rank() == Rank{1}) {
      me.control->close();
      return;
    }
    expect_error(me.control->barrier(Deadline::never()), Code::aborted, {"rank 1"});
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

/// The abort wakes the thread in barrier(), whose quiesce() must not overtake it.
TEST_P(TransportControl, an_abort_by_another_thread_of_a_rank_that_waits_is_what_the_others_learn) {
  for (int round = 0; round < 20; ++round) {
    run(3, [](RankEnds& me) {
      const std::string reason = "rank 1 aborted: stopped by hand";
      std::thread other([&] {
        if (me.rank() == Rank{1}) me.control->abort("stopped by hand");
      });
      if (me.rank() == Rank{0}) {
        while (me.control->status()) std::this_thread::yield();
        expect_error(me.control->status(), Code::aborted, {reason});
      } else {
        expect_error(me.control->barrier(Deadline::never()), Code::aborted, {reason});
      }
      EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
      other.join();
    });
  }
}

TEST_P(TransportControl, quiesce_waits_for_every_rank_that_lives) {
  run(3, [](RankEnds& me) {
    if (me.rank() == Rank{0}) expect_error(me.control->quiesce(brief()), Code::deadline, {"1"});
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    if (me.rank() == Rank{1}) return;
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

/// Every rank shares 64 bytes; the owner sees writes through any address. If `may_refuse`, share()
/// may be `unsupported`, on all ranks or none.
inline void share_and_mark(RankEnds& me, std::span<std::byte> memory, bool may_refuse) {
  const auto key = me.transport->share(memory);
  const Capabilities can = me.transport->capabilities();
  if (!can.direct && can.registers) return;
  if (!can.direct || (may_refuse && !key)) {
    expect_error(key, Code::unsupported);
    return;
  }
  ASSERT_TRUE(key) << outcome(key);
  const auto keys = me.control->all_gather(*key, patient());
  ASSERT_TRUE(keys) << outcome(keys);
  const auto mark = [](int writer) { return std::byte{static_cast<unsigned char>(writer + 1)}; };
  bool mapped = true;
  for (int owner = 0; owner < me.size(); ++owner) {
    const auto there = me.transport->open(Rank{owner}, (*keys)[static_cast<std::size_t>(owner)]);
    ASSERT_TRUE(there) << outcome(there);
    ASSERT_EQ(there->size, memory.size());
    EXPECT_EQ(there->owner, Rank{owner});
    mapped &= there->address != nullptr;
    if (there->address != nullptr) there->address[me.rank().index()] = mark(me.rank().value());
  }
  EXPECT_EQ(outcome(me.control->barrier(patient())), "");
  for (int writer = 0; mapped && writer < me.size(); ++writer)
    EXPECT_EQ(memory[static_cast<std::size_t>(writer)], mark(writer));
}

TEST_P(TransportControl, shared_memory_is_one_memory) {
  run(3, [](RankEnds& me) {
    auto buffer = *HostBuffer::allocate(64, {.shared = true});
    share_and_mark(me, buffer.bytes(), false);
    Bytes memory(64, std::byte{0});
    share_and_mark(me, memory, true);
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST_P(TransportControl, get_reads_pieces_of_shared_memory) {
  run(3, [](RankEnds& me) {
    if (!me.transport->capabilities().direct) return;
    const auto content = [](Rank owner) { return pattern(owner, owner, MessageId{9}, 100'000); };
    auto memory = *HostBuffer::allocate(100'000, {.shared = true});
    std::ranges::copy(content(me.rank()), memory.data());
    const auto key = me.transport->share(memory.bytes());
    ASSERT_TRUE(key) << outcome(key);
    const auto keys = me.control->all_gather(*key, patient());
    ASSERT_TRUE(keys) << outcome(keys);
    for (int owner = 0; owner < me.size(); ++owner) {
      const auto from = me.transport->open(Rank{owner}, (*keys)[static_cast<std::size_t>(owner)]);
      ASSERT_TRUE(from) << outcome(from);
      Bytes got(100'000, std::byte{0}), want(100'000, std::byte{0});
      const Bytes all = content(Rank{owner});
      // More short pieces than fit into one system call, an empty one, and the last byte.
      std::vector<Get> pieces{{&*from, 17, {}}};
      for (std::size_t at = 3; at + 7 < 50'000; at += 13)
        pieces.push_back({&*from, at, std::span(got).subspan(at, 7)});
      pieces.push_back({&*from, all.size() - 1, std::span(got).last(1)});
      for (const Get& piece : pieces)
        std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(piece.offset), piece.into.size(),
                    want.begin() + static_cast<std::ptrdiff_t>(piece.offset));
      EXPECT_EQ(outcome(me.transport->get(pieces)), "");
      EXPECT_TRUE(got == want);
      const Get beyond{&*from, all.size() - 1, std::span(got).first(2)};
      expect_error(me.transport->get({&beyond, 1}), Code::invalid_argument);
    }
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST_P(TransportControl, one_get_reads_memories_of_several_ranks) {
  run(3, [](RankEnds& me) {
    if (!me.transport->capabilities().direct) return;
    const auto content = [](Rank owner, int n) {
      return pattern(owner, Rank{n}, MessageId{9}, 5000);
    };
    // In a file that others map, and in memory that they may only read by get().
    auto mapped = *HostBuffer::allocate(5000, {.shared = true});
    auto own = *HostBuffer::allocate(5000);
    std::vector<RemoteMemory> memories;
    for (HostBuffer* buffer : {&mapped, &own}) {
      std::ranges::copy(content(me.rank(), static_cast<int>(memories.size()) / 3), buffer->data());
      const auto key = me.transport->share(buffer->bytes());
      if (!key) {
        expect_error(key, Code::unsupported);
        return;
      }
      const auto keys = me.control->all_gather(*key, patient());
      ASSERT_TRUE(keys) << outcome(keys);
      for (int owner = 0; owner < me.size(); ++owner) {
        const auto from = me.transport->open(Rank{owner}, (*keys)[static_cast<std::size_t>(owner)]);
        ASSERT_TRUE(from) << outcome(from);
        memories.push_back(*from);
      }
    }
    Bytes got(6 * 100 * 7, std::byte{0}), want;
    std::vector<Get> pieces;
    // The owner changes after each piece in the first half, and seldom in the second.
    for (std::size_t i = 0; i < 600; ++i) {
      const std::size_t m = i < 300 ? i % 6 : i / 5 % 6, offset = i * 8 + m;
      pieces.push_back({&memories[m], offset, std::span(got).subspan(i * 7, 7)});
      const Bytes all = content(memories[m].owner, static_cast<int>(m) / 3);
      want.insert(want.end(), all.begin() + static_cast<std::ptrdiff_t>(offset),
                  all.begin() + static_cast<std::ptrdiff_t>(offset) + 7);
    }
    EXPECT_EQ(outcome(me.transport->get(pieces)), "");
    EXPECT_TRUE(got == want);
    // Nothing is read if one piece is wrong.
    std::ranges::fill(got, std::byte{0});
    pieces.push_back({&memories[5], 4999, std::span(got).first(2)});
    expect_error(me.transport->get(pieces), Code::invalid_argument);
    EXPECT_TRUE(std::ranges::all_of(got, [](std::byte b) { return b == std::byte{0}; }));
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST_P(TransportControl, the_lost_are_known_and_the_tally_is_one) {
  run(3, [](RankEnds& me) {
    EXPECT_TRUE(me.control->lost().empty());
    me.control->report(100 + me.rank().value());
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    // Reports of others may be late; the sum includes this rank's own and never exceeds the total.
    while (me.control->reported() < 303 && me.control->status()) std::this_thread::yield();
    EXPECT_EQ(me.control->reported(), 303);
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    if (me.rank() == Rank{1}) {
      me.control->close();
      return;
    }
    expect_error(me.control->barrier(Deadline::never()), Code::aborted, {"rank 1"});
    EXPECT_EQ(me.control->lost(), std::vector<Rank>{Rank{1}});
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

TEST_P(TransportControl, a_key_of_someone_else_is_refused) {
  run(2, [](RankEnds& me) {
    auto memory = *HostBuffer::allocate(64, {.shared = true});
    const auto key = me.transport->share(memory.bytes());
    if (!key || !me.transport->capabilities().direct) return;
    EXPECT_TRUE(me.transport->open(me.rank(), *key));
    expect_error(me.transport->open(Rank{1 - me.rank().value()}, *key), Code::corrupt);
    expect_error(me.transport->open(Rank{2}, *key), Code::invalid_argument);
    expect_error(me.transport->open(me.rank(), RemoteKey(key->begin(), key->end() - 1)),
                 Code::corrupt);
    expect_error(me.transport->open(me.rank(), {}), Code::corrupt);
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  });
}

}  // namespace reshard
