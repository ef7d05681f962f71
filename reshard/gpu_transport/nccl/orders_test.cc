// SPDX-License-Identifier: Apache-2.0
// Protects: rounds arrive whole over NCCL, in every order in which ranks begin and poll them, and
// on whatever hosts the ranks are; and the model of NCCL hangs where NCCL does.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>

#include "reshard/gpu_transport/nccl/nccl_group_testutil.h"

namespace reshard::nccl {
namespace {

/// A message; with the round, and so the exchange, that it is a part of on either side.
struct Ordered {
  int from = 0, to = 0;
  int round = 0, round_of_receiver = 0;
};

/// Each message is a round of its own.
std::vector<Ordered> one_by_one(std::vector<Ordered> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i)
    messages[i].round = messages[i].round_of_receiver = static_cast<int>(i);
  return messages;
}

/// The ranks of a group in one thread: all calls but making the group return at once.
class OneThread {
 public:
  OneThread(int ranks, const std::vector<Ordered>& messages)
      : group_(*InprocGroup::create(ranks)), ends_(static_cast<std::size_t>(ranks)) {
    const auto made = run_ranks(ranks, [&](Rank r) -> Result<> {
      ends_[r.index()].emplace(RESHARD_TRY(ends_of(group_, r, small_limits())));
      return {};
    });
    EXPECT_EQ(outcome(made), "");
    exchanges_.resize(ends_.size());
    next_.resize(ends_.size());
    flying_.resize(ends_.size());
    for (std::size_t i = 0; i < messages.size(); ++i) add(i, messages[i]);
    for (std::size_t r = 0; r < ends_.size(); ++r) next_[r] = exchanges_[r].begin();
  }

  /// Begins the next exchange of a rank, if it has less than two in progress.
  bool begin(std::size_t r) {
    if (flying_[r].size() == 2 || next_[r] == exchanges_[r].end()) return false;
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    for (Side& side : (next_[r]++)->second) {
      const MessageId id{side.message};
      if (side.sending)
        sends.push_back({Rank{side.peer}, id, side.memory.span(), 0});
      else
        recvs.push_back({Rank{side.peer}, id, side.memory.span(), 0});
    }
    auto event = ends_[r]->transport->exchange(sends, recvs);
    EXPECT_TRUE(event) << outcome(event);
    if (event) flying_[r].push_back(std::move(*event));
    return true;
  }

  void poll(std::size_t r) {
    if (flying_[r].empty()) return;
    const Result<bool> done = flying_[r].front()->test();
    EXPECT_TRUE(done) << outcome(done);
    if (done && *done) flying_[r].pop_front();
  }

  /// Lets all ranks run. True if all messages arrived.
  bool finish() {
    for (int turn = 0; turn < 500; ++turn)
      for (std::size_t r = 0; r < ends_.size(); ++r) {
        while (begin(r)) {
        }
        poll(r);
      }
    for (std::size_t r = 0; r < ends_.size(); ++r) {
      if (!flying_[r].empty() || next_[r] != exchanges_[r].end()) return false;
      for (auto& [round, sides] : exchanges_[r])
        for (Side& side : sides)
          if (side.memory.read() != side.bytes) return false;
    }
    return true;
  }

 private:
  struct Side {
    bool sending;
    int peer;
    std::uint64_t message;
    Bytes bytes;
    Memory memory;
  };
  using Exchanges = std::map<int, std::vector<Side>>;  ///< by round.

  /// A message is in host memory of one side and on the GPU of the other, and has two segments.
  void add(std::size_t i, Ordered m) {
    const Bytes bytes = pattern(Rank{m.from}, Rank{m.to}, MessageId{i}, 1300);
    const bool on_gpu = i % 2 == 0;
    auto& sends = exchanges_[static_cast<std::size_t>(m.from)][m.round];
    sends.push_back({true, m.to, i, bytes, Memory(Rank{m.from}, bytes.size(), on_gpu)});
    sends.back().memory.write(bytes);
    exchanges_[static_cast<std::size_t>(m.to)][m.round_of_receiver].push_back(
        {false, m.from, i, bytes, Memory(Rank{m.to}, bytes.size(), !on_gpu)});
  }

  InprocGroup group_;
  std::vector<Exchanges> exchanges_;
  std::vector<Exchanges::iterator> next_;  ///< that was not begun.
  std::vector<std::optional<RankEnds>> ends_;
  std::vector<std::deque<std::unique_ptr<Event>>> flying_;
};

using NcclOrders = WithNcclModel;

/// All sequences of `length` actions, each of one rank: to begin an exchange, or to poll.
void try_all_orders(int ranks, const std::vector<Ordered>& order, int length) {
  int sequences = 1;
  for (int i = 0; i < length; ++i) sequences *= 2 * ranks;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    OneThread group(ranks, order);
    for (int i = 0, left = sequence; i < length; ++i, left /= 2 * ranks) {
      const auto rank = static_cast<std::size_t>(left % (2 * ranks) / 2);
      if (left % 2 == 0)
        group.begin(rank);
      else
        group.poll(rank);
    }
    ASSERT_TRUE(group.finish()) << sequence;
  }
}

TEST_F(NcclOrders, two_ranks_that_send_to_each_other_end_in_every_order_of_events) {
  try_all_orders(2, one_by_one({{0, 1}, {1, 0}, {1, 0}, {0, 1}}), 4);
}

TEST_F(NcclOrders, a_ring_of_three_ranks_ends_in_every_order_of_events) {
  try_all_orders(3, one_by_one({{0, 1}, {1, 2}, {2, 0}}), 3);
  try_all_orders(3, {{0, 1}, {1, 2}, {2, 0}}, 3);
}

/// Random messages between `ranks`, in rounds of 1 to 12.
std::vector<Ordered> random_rounds(int ranks, int messages, std::uint64_t seed) {
  std::vector<Ordered> out;
  int round = 0;
  for (int i = 0; i < messages; ++i) {
    const std::uint64_t x = mix64(seed * 1000 + static_cast<std::uint64_t>(i));
    const auto n = static_cast<std::uint64_t>(ranks);
    const int from = static_cast<int>(x % n);
    const int to = (from + 1 + static_cast<int>((x >> 8) % (n - 1))) % ranks;
    out.push_back({from, to, round, round});
    round += (x >> 16) % 12 == 0 ? 1 : 0;
  }
  return out;
}

TEST_F(NcclOrders, random_rounds_end_in_random_orders_of_events_on_any_hosts) {
  struct Ranks {
    int all, per_host;
  };
  for (const auto& [ranks, per_host] : {Ranks{5, 0}, {9, 3}, {10, 5}, {12, 4}, {12, 0}, {16, 0}})
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      nccl_model().seed = seed;
      nccl_model().ranks_per_host = per_host;
      OneThread group(ranks, random_rounds(ranks, 10 * ranks, seed));
      for (std::uint64_t i = 0; i < 200; ++i) {
        const std::uint64_t x = mix64(seed * 10'000 + i);
        const auto rank = static_cast<std::size_t>(x / 2) % static_cast<std::size_t>(ranks);
        if (x % 2 == 0)
          group.begin(rank);
        else
          group.poll(rank);
      }
      ASSERT_TRUE(group.finish()) << ranks << " ranks, seed " << seed;
    }
}

TEST_F(NcclOrders, exchanges_that_are_no_rounds_hang_in_the_model_as_in_nccl) {
  // Each sends in its first exchange what the next receives in its second.
  EXPECT_FALSE(OneThread(3, {{0, 1, 0, 1}, {1, 2, 0, 1}, {2, 0, 0, 1}}).finish());
  // In one order, but rank 9 has two messages in one exchange: NCCL runs the near one, which is
  // later, first.
  EXPECT_FALSE(OneThread(16, {{0, 9, 0, 0}, {0, 8, 1, 1}, {8, 9, 2, 0}}).finish());
  EXPECT_TRUE(OneThread(16, one_by_one({{0, 9}, {0, 8}, {8, 9}})).finish());
}

}  // namespace
}  // namespace reshard::nccl
