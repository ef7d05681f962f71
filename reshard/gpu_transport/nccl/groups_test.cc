// SPDX-License-Identifier: Apache-2.0
// Protects: ranks that cut one order of messages into exchanges of their own, and give them to NCCL
// group by group, neither deadlock nor mismatch messages.
#include "reshard/gpu_transport/nccl/groups.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <algorithm>
#include <map>
#include <set>

namespace reshard::nccl {
namespace {

/// A message of the group's one order.
struct Ordered {
  int from = 0, to = 0;
  std::size_t bytes = 1;
};

/// The messages of a rank in exchanges: each at most `most` messages, cut where `draw` says.
template <class F>
Lanes lanes_of(int me, int ranks, const std::vector<Ordered>& order, std::size_t segment,
               F&& draw) {
  Lanes lanes;
  std::vector<Message> exchange;
  std::uint64_t step = 0;
  const auto flush = [&] {
    append_halves(Rank{me}, ranks, exchange, step++, segment, lanes);
    exchange.clear();
  };
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto add = [&](bool sending, int peer) {
      Message m;
      m.sending = sending;
      m.peer = Rank{peer};
      m.id = MessageId{i};
      m.size = order[i].bytes;
      m.turn = static_cast<std::uint32_t>(exchange.size());
      exchange.push_back(m);
      if (draw()) flush();
    };
    if (order[i].from == me) add(true, order[i].to);
    if (order[i].to == me) add(false, order[i].from);
  }
  flush();
  return lanes;
}

/// The groups of one lane of all ranks on NCCL, as strictly as its source has it: a group begins
/// once its new peers have arrived; its epochs run one after another, and each of their messages
/// is complete when both sides have begun.
class StrictNccl {
 public:
  StrictNccl(std::vector<std::deque<Half>> lanes, const GroupLimits& limits)
      : left_(std::move(lanes)), limits_(limits), ranks_(left_.size()) {
    for (Member& m : ranks_) m.connected.resize(left_.size());
  }

  /// Runs until nothing moves. True if every message is complete, with its own other side.
  bool run() {
    while (step()) {
    }
    return !mismatch_ && std::ranges::all_of(left_, [](const auto& l) { return l.empty(); }) &&
           std::ranges::all_of(ranks_, [](const Member& m) { return m.group.empty(); });
  }

 private:
  struct Op {
    Half half;
    int epoch = 0;
    bool begun = false, done = false;
  };
  struct Member {
    std::vector<Op> group;
    std::vector<bool> connected;
    bool runs = false;
  };
  using Pair = std::pair<std::size_t, std::size_t>;

  static Pair pair_of(std::size_t rank, const Half& h) {
    return h.sending ? Pair{rank, h.peer.index()} : Pair{h.peer.index(), rank};
  }

  void begin_group(std::size_t r) {
    Member& m = ranks_[r];
    const std::size_t n = next_group(left_[r], m.connected, limits_);
    std::map<Pair, int> epochs;
    m.runs = false;
    for (std::size_t i = 0; i < n; ++i) {
      const Half h = left_[r].front();
      left_[r].pop_front();
      m.group.push_back({h, epochs[pair_of(r, h)]++, false, false});
      (h.sending ? arrived_sends_ : arrived_recvs_).insert(pair_of(r, h));
      m.connected[h.peer.index()] = true;
    }
  }

  bool is_connected(std::size_t r) const {
    return std::ranges::all_of(ranks_[r].group, [&](const Op& op) {
      const Pair pair = pair_of(r, op.half);
      return (op.half.sending ? arrived_recvs_ : arrived_sends_).contains(pair);
    });
  }

  void begin_op(std::size_t r, Op& op) {
    op.begun = true;
    const Pair pair = pair_of(r, op.half);
    auto& mine = op.half.sending ? sent_[pair] : received_[pair];
    auto& theirs = op.half.sending ? received_[pair] : sent_[pair];
    const std::size_t k = mine.size();
    mine.push_back(&op);
    if (theirs.size() <= k) return;
    mismatch_ |= theirs[k]->half.id != op.half.id || theirs[k]->half.size != op.half.size;
    theirs[k]->done = op.done = true;
  }

  bool step() {
    bool moved = false;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Member& m = ranks_[r];
      if (m.group.empty()) {
        if (left_[r].empty()) continue;
        begin_group(r);
        moved = true;
      }
      if (!m.runs) moved |= m.runs = is_connected(r);
      if (!m.runs) continue;
      int epoch = -1;
      for (const Op& op : m.group)
        if (!op.done && (epoch < 0 || op.epoch < epoch)) epoch = op.epoch;
      for (Op& op : m.group)
        if (op.epoch == epoch && !op.begun) {
          begin_op(r, op);
          moved = true;
        }
      if (!std::ranges::all_of(m.group, &Op::done)) continue;
      over_.push_back(std::move(m.group));  // Their addresses are in use.
      m.group.clear();
      moved = true;
    }
    return moved;
  }

  std::vector<std::deque<Half>> left_;
  GroupLimits limits_;
  std::vector<Member> ranks_;
  std::set<Pair> arrived_sends_, arrived_recvs_;
  std::map<Pair, std::vector<Op*>> sent_, received_;
  std::vector<std::vector<Op>> over_;
  bool mismatch_ = false;
};

/// True if all messages of an order arrive. `draw` as lanes_of().
template <class F>
bool arrives(int ranks, const std::vector<Ordered>& order, const GroupLimits& limits, F&& draw) {
  std::array<std::vector<std::deque<Half>>, kLanes> lanes;
  for (int r = 0; r < ranks; ++r) {
    Lanes mine = lanes_of(r, ranks, order, limits.segment_bytes, draw);
    for (std::size_t l = 0; l < kLanes; ++l) lanes[l].push_back(std::move(mine[l]));
  }
  return StrictNccl(lanes[kUp], limits).run() && StrictNccl(lanes[kDown], limits).run();
}

/// Random classes: each a shift, and the ranks that send at this position.
std::vector<Ordered> random_order(int ranks, int classes) {
  std::vector<Ordered> order;
  for (int c = 0; c < classes; ++c) {
    const int shift = *rc::gen::inRange(1, ranks);
    for (int r = 0; r < ranks; ++r)
      if (*rc::gen::inRange(0, 3) > 0)
        order.push_back({r, (r + shift) % ranks, *rc::gen::inRange<std::size_t>(1, 40)});
  }
  return order;
}

RC_GTEST_PROP(NcclGroups, every_message_meets_its_own_other_side_however_ranks_cut_the_order, ()) {
  const int ranks = *rc::gen::inRange(2, 12);
  const auto order = random_order(ranks, *rc::gen::inRange(0, 30));
  GroupLimits limits;
  limits.segment_bytes = *rc::gen::inRange<std::size_t>(7, 50);
  limits.messages = *rc::gen::inRange(1, 20);
  limits.peers = *rc::gen::inRange(1, 9);
  limits.bytes = *rc::gen::inRange<std::size_t>(1, 200);
  RC_ASSERT(arrives(ranks, order, limits, [] { return *rc::gen::inRange(0, 4) == 0; }));
}

/// Calls f(draw) for every sequence of `n` decisions.
template <class F>
void for_all_cuts(int n, F&& f) {
  for (std::uint32_t bits = 0; bits < (1U << n); ++bits) {
    std::uint32_t left = bits;
    f([left]() mutable {
      const bool cut = (left & 1U) != 0;
      left >>= 1;
      return cut;
    });
  }
}

TEST(NcclGroups, a_ring_whose_ranks_cut_between_send_and_receive_arrives_in_every_cut) {
  // One class: everyone sends to the next. With one lane, cuts after the sends are a deadlock.
  for (const int ranks : {2, 3, 4}) {
    std::vector<Ordered> order;
    for (int r = 0; r < ranks; ++r) order.push_back({r, (r + 1) % ranks, 10});
    for (int r = 0; r < ranks; ++r) order.push_back({r, (r + 1) % ranks, 10});
    for_all_cuts(ranks, [&](auto cut) {
      // Every rank cuts after its sends, or nowhere.
      EXPECT_TRUE(arrives(ranks, order, {}, cut));
    });
  }
}

TEST(NcclGroups, one_lane_for_both_directions_would_deadlock) {
  // The same ring as groups of one message, sends first, on one lane: what two lanes are for.
  std::vector<std::deque<Half>> lane(2);
  for (int r = 0; r < 2; ++r)
    for (const bool sending : {true, false}) {
      Half h;
      h.sending = sending;
      h.peer = Rank{1 - r};
      h.size = 1;
      lane[static_cast<std::size_t>(r)].push_back(h);
    }
  GroupLimits alone;
  alone.messages = 1;
  alone.bytes = 1;
  EXPECT_FALSE(StrictNccl(lane, alone).run());
}

TEST(NcclGroups, all_cuts_of_three_messages_between_three_ranks_arrive) {
  for (int code = 0; code < 6 * 6 * 6; ++code) {
    std::vector<Ordered> order;
    for (int rest = code, i = 0; i < 3; ++i, rest /= 6) {
      const int from = rest % 6 / 2;
      order.push_back({from, (from + 1 + rest % 2) % 3, 3});
    }
    for (int cuts = 0; cuts < 64; ++cuts) {
      int left = cuts;
      const auto draw = [&left] { return std::exchange(left, left / 2) % 2 == 1; };
      EXPECT_TRUE(arrives(3, order, {.segment_bytes = 2}, draw)) << code << " " << cuts;
    }
  }
}

std::deque<Half> halves(std::initializer_list<std::pair<int, std::size_t>> peers_and_sizes) {
  std::deque<Half> lane;
  for (const auto& [peer, size] : peers_and_sizes) {
    Half h;
    h.sending = true;
    h.peer = Rank{peer};
    h.size = size;
    lane.push_back(h);
  }
  return lane;
}

TEST(NcclGroups, a_group_ends_at_a_new_peer_at_a_lower_epoch_and_at_each_limit) {
  const std::vector<bool> known(16, true);
  std::vector<bool> but_two = known;
  but_two[2] = false;
  EXPECT_EQ(next_group(halves({{1, 1}, {2, 1}, {1, 1}}), but_two, {}), 1U);
  EXPECT_EQ(next_group(halves({{2, 1}, {1, 1}}), but_two, {}), 1U);
  EXPECT_EQ(next_group(halves({{1, 1}, {2, 1}, {1, 1}, {2, 1}}), known, {}), 4U);
  EXPECT_EQ(next_group(halves({{1, 1}, {1, 1}, {2, 1}}), known, {}), 2U);
  EXPECT_EQ(next_group(halves({{1, 5}, {2, 5}, {3, 5}}), known, {.bytes = 10}), 2U);
  EXPECT_EQ(next_group(halves({{1, 50}, {2, 5}}), known, {.bytes = 10}), 1U);
  EXPECT_EQ(next_group(halves({{1, 1}, {2, 1}, {3, 1}}), known, {.messages = 2}), 2U);
  EXPECT_EQ(next_group(halves({{1, 1}, {2, 1}, {3, 1}}), known, {.peers = 2}), 2U);
  auto on_host = halves({{1, 5}, {2, 5}, {3, 5}});
  for (Half& h : on_host) h.on_host = true;
  EXPECT_EQ(next_group(on_host, known, {.host_bytes = 10}), 2U);
}

TEST(NcclGroups, a_message_is_cut_into_segments_that_both_sides_know) {
  Lanes lanes;
  Message m;
  m.sending = true;
  m.peer = Rank{1};
  m.size = 600;
  append_halves(Rank{0}, 2, {&m, 1}, 7, 256, lanes);
  ASSERT_EQ(lanes[kUp].size(), 3U);
  EXPECT_EQ(lanes[kUp][2].size, 88U);
  EXPECT_EQ(lanes[kUp][2].step, 7U);
  EXPECT_EQ(lanes[kUp][1].bytes, m.bytes + 256);
  EXPECT_TRUE(lanes[kDown].empty());
  static_assert(GroupLimits{}.segment_bytes <= std::size_t{256} << 20);
}

}  // namespace
}  // namespace reshard::nccl
