// SPDX-License-Identifier: Apache-2.0
// Protects: the messages between two ranks carry each byte once; there are few of them; both ranks
// cut them in the same way; concurrent steps never share staging, which stays below its cap.
#include "reshard/exec/message/message_schedule.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/message/message_steps.h"
#include "reshard/model/configs_testutil.h"

namespace reshard::message {
namespace {

PairPiece piece(Index bytes, bool one_run_sent, bool one_run_received, bool converts = false) {
  const auto side = [&](bool one_run) {
    Packing p;
    p.copy.run_bytes = one_run ? bytes : 1;
    if (!one_run) {
      p.copy.num_loops = 1;
      p.copy.loops[0] = {bytes, 2, 1};
    }
    if (converts) p.conversion = {{DType::f32}, {DType::bf16}};
    return p;
  };
  return {side(one_run_sent), side(one_run_received), bytes, converts};
}

RC_GTEST_PROP(PairChunks, carry_every_byte_once_and_end_between_elements, ()) {
  const ChunkSizes sizes{*rc::gen::element<Index>(64, 128, 4096),
                         *rc::gen::element<Index>(1, 100, 5000)};
  std::vector<PairPiece> pieces;
  for (int n = *rc::gen::inRange(1, 40); n > 0; --n) {
    const bool converts = *rc::gen::arbitrary<bool>();
    const Index bytes = *rc::gen::inRange<Index>(1, 3000);
    pieces.push_back(piece(converts ? bytes * 2 : bytes, *rc::gen::arbitrary<bool>(),
                           *rc::gen::arbitrary<bool>(), converts));
  }
  const PairChunks cut = program::chunks_of(pieces, sizes);
  std::vector<Index> next(pieces.size(), 0);
  Index before = 0;
  for (const auto& chunk : cut.chunks) {
    const auto parts = cut.parts_of(chunk);
    Index at = 0;
    for (const ChunkPart& part : parts) {
      RC_ASSERT(part.at >= at && part.end > part.begin);
      RC_ASSERT(part.begin == next[part.piece]);
      if (pieces[part.piece].converts) RC_ASSERT(part.begin % 2 == 0 && part.at % 8 == 0);
      next[part.piece] = part.end;
      at = part.at + part.end - part.begin;
    }
    RC_ASSERT(chunk.bytes == at && chunk.before == before);
    const PairPiece& only = pieces[parts[0].piece];
    const bool nobody_stages = parts.size() == 1 && only.src.in_one_run() && only.dst.in_one_run();
    RC_ASSERT(chunk.bytes <= (nobody_stages ? program::kMostInPlace : sizes.staged));
    before += chunk.bytes;
  }
  RC_ASSERT(cut.bytes == before);
  for (std::size_t i = 0; i < pieces.size(); ++i) RC_ASSERT(next[i] == pieces[i].bytes);
}

TEST(PairChunks, tens_of_thousands_of_small_tensors_are_few_messages) {
  const std::vector<PairPiece> pieces(40'000, piece(3000, true, true));
  const PairChunks cut = program::chunks_of(pieces, {Index{1} << 20, Index{64} << 10});
  EXPECT_EQ(cut.chunks.size(), 115);  // 120 000 000 bytes in chunks of 1 MiB
}

TEST(PairChunks, what_is_one_run_on_both_sides_is_never_staged) {
  const std::vector<PairPiece> pieces = {piece(100, true, true), piece(Index{20} << 20, true, true),
                                         piece(100, true, true)};
  const PairChunks cut = program::chunks_of(pieces, {Index{1} << 20, Index{64} << 10});
  ASSERT_EQ(cut.chunks.size(), 4);
  EXPECT_EQ(cut.chunks[0].bytes, program::kMostInPlace);
  EXPECT_EQ(cut.chunks[3].bytes, 200);
}

/// All ranks' schedules of one refit, cut into many messages.
struct ProcessGroup {
  ModelConfig config = wide_moe();
  std::shared_ptr<const ModelSpec> model = model_of(config);
  std::shared_ptr<const ModelLayout> from, to;
  Index world = 0;
  ChunkSizes sizes{*rc::gen::element<Index>(512, 1024, 4096),
                   *rc::gen::element<Index>(1, 200, 1000, 10'000)};
  std::vector<MessageSchedule> schedules;
  ProcessGroup() {
    from = layout_of(*rc::gen::element<std::string>("megatron:tp=2,pp=2,ep=2,etp=1", "hf:shards=3",
                                                    "megatron:tp=4,pp=2,ep=2,etp=2"),
                     model, config);
    to = layout_of(*rc::gen::element<std::string>("vllm:tp=4", "vllm:tp=4,offset=3",
                                                  "vllm:tp=2,offset=8", "hf:shards=5,offset=2"),
                   model, config);
    const Planner planner = *Planner::make(from, to);
    const RankBuffers source = allocate_all(from), target = allocate_all(to);
    world = planner.ranks().members().back().value() + 1;
    for (Index r = 0; r < world; ++r)
      schedules.push_back(*message_schedule(planner, planner.rank_plan(Rank(static_cast<int>(r))),
                                            &source, &target, world, sizes));
  }
};

RC_GTEST_PROP(MessageSchedule, both_ends_of_every_message_have_the_same, ()) {
  const ProcessGroup g;
  std::map<std::tuple<Index, Rank, MessageId>, Index> sent, received;
  for (Index r = 0; r < g.world; ++r) {
    const Rank me(static_cast<int>(r));
    for (const ChunkOp& op : g.schedules[static_cast<std::size_t>(r)].ops) {
      auto& messages = op.is_send ? sent : received;
      const auto key = op.is_send ? std::tuple(r, op.peer, op.id)
                                  : std::tuple(Index{op.peer.value()}, me, op.id);
      RC_ASSERT(messages.emplace(key, op.bytes).second);
    }
  }
  RC_ASSERT(sent == received);
}

/// Simulates the group without moving a byte: a message is complete once both its steps have begun.
RC_GTEST_PROP(MessageSchedule, no_group_of_ranks_deadlocks, ()) {
  const ProcessGroup g;
  struct RankState {
    MessageSteps steps;
    std::size_t begun = 0, over = 0;
  };
  std::vector<RankState> ranks;
  std::map<std::tuple<Rank, Rank, MessageId>, int> begun;
  const auto key = [](Rank me, const ChunkOp& op) {
    return op.is_send ? std::tuple(me, op.peer, op.id) : std::tuple(op.peer, me, op.id);
  };
  for (const auto& schedule : g.schedules)
    ranks.push_back({group_into_steps(schedule, g.sizes.staged), 0, 0});
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      auto& [steps, next, over] = ranks[r];
      const Rank me(static_cast<int>(r));
      const auto& ops = g.schedules[r].ops;
      const auto is_done = [&](const MessageStep& step) {
        return std::all_of(ops.begin() + static_cast<std::ptrdiff_t>(step.first),
                           ops.begin() + static_cast<std::ptrdiff_t>(step.end),
                           [&](const ChunkOp& op) { return begun[key(me, op)] == 2; });
      };
      if (over < next && is_done(steps.steps[over])) {
        ++over;
        moves = true;
      }
      if (next < steps.steps.size() && steps.steps[next].after <= over) {
        for (std::size_t o = steps.steps[next].first; o < steps.steps[next].end; ++o)
          ++begun[key(me, ops[o])];
        ++next;
        moves = true;
      }
    }
  }
  for (const RankState& rank : ranks) RC_ASSERT(rank.over == rank.steps.steps.size());
}

RC_GTEST_PROP(MessageSteps, steps_under_way_have_staging_of_their_own, ()) {
  const ProcessGroup g;
  for (const MessageSchedule& schedule : g.schedules) {
    const MessageSteps out = group_into_steps(schedule, g.sizes.staged);
    RC_ASSERT(out.staging_bytes <= 8 * g.sizes.staged);
    std::size_t ops = 0;
    for (std::size_t i = 0; i < out.steps.size(); ++i) {
      const MessageStep& step = out.steps[i];
      RC_ASSERT(step.first == ops && step.end > step.first);
      ops = step.end;
      RC_ASSERT(step.staging >= 0 && step.staging + step.staged_bytes <= out.staging_bytes);
      RC_ASSERT(step.after < i || i == 0);  // room for two
      RC_ASSERT(i - step.after < kWindow);
      for (std::size_t j = step.after; j < i; ++j) {
        const MessageStep& other = out.steps[j];
        RC_ASSERT(other.staging + other.staged_bytes <= step.staging ||
                  step.staging + step.staged_bytes <= other.staging);
      }
    }
    RC_ASSERT(ops == schedule.ops.size());
  }
}

}  // namespace
}  // namespace reshard::message
