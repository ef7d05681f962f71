// SPDX-License-Identifier: Apache-2.0
// Protects: every byte of every message arrives at its destination, whatever the order of posts,
// the sizes and the number of messages.
#pragma once

#include <fstream>
#include <thread>

#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

TEST_P(TransportMessages, an_exchange_of_nothing_is_done) {
  run([](RankEnds& me) {
    auto event = me.transport->exchange({}, {});
    ASSERT_TRUE(event) << outcome(event);
    EXPECT_EQ((*event)->test(), true);
    EXPECT_EQ(outcome((*event)->wait(Deadline::never())), "");
  });
}

TEST_P(TransportMessages, every_rank_reaches_every_rank_and_itself_with_any_size) {
  run([](RankEnds& me) {
    Traffic traffic(me);
    const std::size_t sizes[] = {0, 1, 2, 63, 4096, 300'001};
    for (int peer = 0; peer < me.size(); ++peer) {
      for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
        traffic.send(Rank{peer}, MessageId{i}, sizes[i]);
        traffic.recv(Rank{peer}, MessageId{i}, sizes[i]);
      }
    }
    EXPECT_EQ(outcome(step(*me.transport, traffic.sends, traffic.recvs())), "");
    EXPECT_EQ(traffic.wrong(), 0U);
  });
}

TEST_P(TransportMessages, polling_alone_gets_there) {
  run([](RankEnds& me) {
    const Rank next{(me.rank().value() + 1) % me.size()};
    const Rank previous{(me.rank().value() + me.size() - 1) % me.size()};
    Traffic traffic(me);
    traffic.send(next, MessageId{1}, 5'000'000);
    traffic.recv(previous, MessageId{1}, 5'000'000);
    auto event = me.transport->exchange(traffic.sends, traffic.recvs());
    ASSERT_TRUE(event) << outcome(event);
    Result<bool> done = false;
    while (done && !*done) {
      done = (*event)->test();
      std::this_thread::yield();
    }
    EXPECT_EQ(outcome(done), "");
    EXPECT_EQ(traffic.wrong(), 0U);
  });
}

TEST_P(TransportMessages, posts_meet_in_whatever_order_they_come) {
  run([](RankEnds& me) {
    // Messages between two ranks have equal sizes, so that only the id distinguishes them. Even
    // ranks post their receives after the barrier and in reverse order, odd ranks before it, one by
    // one, in both orders.
    constexpr std::uint64_t kMessages = 20;
    const bool late = me.rank().value() % 2 == 0;
    Traffic traffic(me);
    for (int peer = 0; peer < me.size(); ++peer) {
      for (std::uint64_t i = 0; i < kMessages; ++i) {
        traffic.send(Rank{peer}, MessageId{i}, 100);
        traffic.recv(Rank{peer}, MessageId{i}, 100);
      }
    }
    auto recvs = traffic.recvs();
    if (late) std::reverse(recvs.begin(), recvs.end());
    std::vector<std::unique_ptr<Event>> events;
    const auto post = [&](std::span<const Send> s, std::span<const Recv> r) {
      auto event = me.transport->exchange(s, r);
      EXPECT_TRUE(event) << outcome(event);
      if (event) events.push_back(std::move(*event));
    };
    if (late) post(traffic.sends, {});
    for (const Recv& recv : recvs)
      if (!late) post({}, {&recv, 1});
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    if (late) post({}, recvs);
    for (auto it = traffic.sends.rbegin(); !late && it != traffic.sends.rend(); ++it)
      post({&*it, 1}, {});
    for (auto it = events.rbegin(); it != events.rend(); ++it)
      EXPECT_EQ(outcome((*it)->wait(patient())), "");
    EXPECT_EQ(traffic.wrong(), 0U);
  });
}

TEST_P(TransportMessages, random_traffic_in_overlapping_steps_arrives_whole) {
  run([](RankEnds& me) {
    // Every rank draws the same global list of messages from one seed and posts its own.
    for (std::uint64_t round = 0; round < 10; ++round) {
      Traffic traffic(me);
      const auto n = static_cast<std::uint64_t>(me.size());
      for (std::uint64_t i = 0; i < 120; ++i) {
        const std::uint64_t x = mix64(round * 1000 + i);
        const Rank from{static_cast<int>(x % n)}, to{static_cast<int>((x >> 8) % n)};
        const std::size_t bytes = (x >> 16) % (i % 10 == 0 ? 1'000'000 : 2'000);
        if (from == me.rank()) traffic.send(to, MessageId{round * 1000 + i}, bytes);
        if (to == me.rank()) traffic.recv(from, MessageId{round * 1000 + i}, bytes);
      }
      const auto recvs = traffic.recvs();
      const std::span<const Recv> r(recvs);
      const std::span<const Send> s(traffic.sends);
      const auto cut_s = round % (s.size() + 1), cut_r = (round * 3) % (r.size() + 1);
      auto first = me.transport->exchange(s.first(cut_s), r.subspan(cut_r));
      auto second = me.transport->exchange(s.subspan(cut_s), r.first(cut_r));
      ASSERT_TRUE(first && second);
      EXPECT_EQ(outcome((*second)->wait(patient())), "");
      EXPECT_EQ(outcome((*first)->wait(patient())), "");
      EXPECT_EQ(traffic.wrong(), 0U);
    }
  });
}

TEST_P(TransportMessages, an_id_serves_again_after_a_barrier) {
  run([](RankEnds& me) {
    const Rank last{me.size() - 1};
    for (std::size_t round = 0; round < 50; ++round) {
      Traffic traffic(me);
      if (me.rank() == Rank{0}) traffic.send(last, MessageId{7}, round * 100);
      if (me.rank() == last) traffic.recv(Rank{0}, MessageId{7}, round * 100);
      EXPECT_EQ(outcome(step(*me.transport, traffic.sends, traffic.recvs())), "");
      EXPECT_EQ(traffic.wrong(), 0U);
      ASSERT_EQ(outcome(me.control->barrier(patient())), "");
    }
  });
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kManyMessages = 10'000;  // A message takes over ten times as long.
#else
inline constexpr std::uint64_t kManyMessages = 30'000;
#endif

TEST_P(TransportLoad, very_many_small_messages_arrive) {
  run([](RankEnds& me) {
    const std::uint64_t count = kManyMessages / static_cast<std::uint64_t>(me.size());
    const Rank next{(me.rank().value() + 1) % me.size()};
    const Rank previous{(me.rank().value() + me.size() - 1) % me.size()};
    std::vector<std::uint64_t> out(count), in(count);
    const auto value = [](std::uint64_t i, Rank of) {
      return mix64(i) + static_cast<std::uint64_t>(of.value());
    };
    for (std::uint64_t i = 0; i < count; ++i) out[i] = value(i, me.rank());
    const auto bytes = std::as_bytes(std::span(out));
    const Block sent(me.memory.sends, Bytes(bytes.begin(), bytes.end()));
    const Block received(me.memory.recvs, bytes.size());
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    for (std::uint64_t i = 0; i < count; ++i) {
      sends.push_back({next, MessageId{i}, sent.bytes().subspan(8 * i, 8)});
      recvs.push_back({previous, MessageId{i}, received.bytes().subspan(8 * i, 8)});
    }
    EXPECT_EQ(outcome(step(*me.transport, sends, recvs)), "");
    me.memory.recvs->read(std::as_writable_bytes(std::span(in)), received.bytes().data());
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < count; ++i) wrong += in[i] != value(i, previous);
    EXPECT_EQ(wrong, 0U);
  });
}

/// Rank 0 sends one message of `bytes` to the last rank.
inline void send_one(RankEnds& me, std::size_t bytes) {
  const Rank last{me.size() - 1};
  Traffic traffic(me);
  if (me.rank() == Rank{0}) traffic.send(last, MessageId{1}, bytes);
  if (me.rank() == last) traffic.recv(Rank{0}, MessageId{1}, bytes);
  EXPECT_EQ(outcome(step(*me.transport, traffic.sends, traffic.recvs())), "");
  EXPECT_EQ(traffic.wrong(), 0U);
}

TEST_P(TransportLoad, a_message_of_64_MiB_arrives) {
  run([](RankEnds& me) { send_one(me, std::size_t{64} << 20); });
}

/// Bytes of memory available without swapping.
inline std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  return 0;
}

TEST_P(TransportSlow, a_message_beyond_2_GiB_arrives) {
  const std::size_t bytes = (std::size_t{2} << 30) + 1;
  if (std::getenv("RESHARD_SLOW_TESTS") == nullptr)
    GTEST_SKIP() << "set RESHARD_SLOW_TESTS=1 to run it";
  if (available_memory() < 5 * bytes) GTEST_SKIP() << "needs 10 GiB of memory";
  run(2, [&](RankEnds& me) { send_one(me, bytes); });
}

}  // namespace reshard
