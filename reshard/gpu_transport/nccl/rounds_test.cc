// SPDX-License-Identifier: Apache-2.0
// Protects: ranks that pass their messages to NCCL group by group neither deadlock nor mismatch
// messages.
#include "reshard/gpu_transport/nccl/rounds.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <array>
#include <map>

namespace reshard::nccl {
namespace {

constexpr std::size_t kAtOnce = 3;
std::array<std::byte, 64> memory{};

struct Step {
  std::vector<Send> sends;
  std::vector<Recv> recvs;
};

/// Random messages between `ranks` ranks; each rank lists its own in random order.
std::vector<Step> random_steps(int ranks) {
  std::vector<Step> steps(static_cast<std::size_t>(ranks));
  const int messages = *rc::gen::inRange(0, 120);
  for (int i = 0; i < messages; ++i) {
    const Rank from{*rc::gen::inRange(0, ranks)}, to{*rc::gen::inRange(0, ranks)};
    const auto bytes = std::span(memory).first(*rc::gen::inRange<std::size_t>(0, 3));
    const MessageId id{static_cast<std::uint64_t>(i * 7919 % 1000)};
    steps[from.index()].sends.push_back({to, id, bytes});
    Step& there = steps[to.index()];
    there.recvs.insert(there.recvs.begin(), {from, id, bytes});
  }
  return steps;
}

/// NCCL's matching: the k-th send from a to b matches the k-th receive at b from a; a group of a
/// rank ends once all its messages have matched.
struct Nccl {
  using Pair = std::pair<int, int>;
  std::map<Pair, std::vector<Half>> sent, received;

  void post(int rank, const Half& half) {
    if (half.sending) {
      sent[{rank, half.peer.value()}].push_back(half);
    } else {
      received[{half.peer.value(), rank}].push_back(half);
    }
  }
  bool has_met(int rank, const Half& half) {
    const Pair pair = half.sending ? Pair{rank, half.peer.value()} : Pair{half.peer.value(), rank};
    auto& mine = half.sending ? sent[pair] : received[pair];
    auto& theirs = half.sending ? received[pair] : sent[pair];
    for (std::size_t k = 0; k < mine.size(); ++k)
      if (mine[k].id == half.id) return k < theirs.size() && theirs[k].id == half.id;
    return false;
  }
};

RC_GTEST_PROP(NcclRounds, every_message_meets_its_own_half_and_nobody_waits_for_ever, ()) {
  const int ranks = *rc::gen::inRange(1, 9);
  const std::vector<Step> steps = random_steps(ranks);
  std::vector<std::vector<Half>> plans;
  std::vector<std::span<const Half>> left, current(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    const Step& step = steps[static_cast<std::size_t>(r)];
    plans.push_back(plan_rounds(Rank{r}, ranks, step.sends, step.recvs, kAtOnce));
  }
  for (const auto& plan : plans) left.emplace_back(plan);
  Nccl nccl;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < left.size(); ++r) {
      const int rank = static_cast<int>(r);
      if (!std::ranges::all_of(current[r], [&](const Half& h) { return nccl.has_met(rank, h); }))
        continue;
      current[r] = {};
      if (left[r].empty()) continue;
      current[r] = next_group(left[r]);
      left[r] = left[r].subspan(current[r].size());
      RC_ASSERT(current[r].size() <= 2 * kAtOnce);
      for (const Half& half : current[r]) nccl.post(rank, half);
      moved = true;
    }
  }
  for (std::size_t r = 0; r < left.size(); ++r) RC_ASSERT(left[r].empty() && current[r].empty());
}

TEST(NcclRounds, messages_of_zero_bytes_are_left_out) {
  const Send send{Rank{1}, MessageId{4}, {}};
  EXPECT_TRUE(plan_rounds(Rank{0}, 2, {&send, 1}, {}, kAtOnce).empty());
}

}  // namespace
}  // namespace reshard::nccl
