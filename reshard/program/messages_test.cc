// SPDX-License-Identifier: Apache-2.0
// Protects: the programs of a group carry every byte once, whatever way each pair of ranks takes;
// both ends of a message agree; steps at the same time never share staging, which stays below its
// cap; and no group waits for itself.
#include "reshard/program/messages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "reshard/layout/clip.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/plan/moves.h"
#include "reshard/program/compile.h"

namespace reshard::program {
namespace {

using Kind = ProgramStep::Kind;

/// All ranks' programs of one refit, cut into many messages. Each pair of ranks has a random way.
struct CompiledGroup {
  ModelConfig config = wide_moe();
  std::shared_ptr<const ModelSpec> model = model_of(config);
  Planner planner = *Planner::make(
      layout_of(*rc::gen::element<std::string>("megatron:tp=2,pp=2,ep=2,etp=1", "hf:shards=3",
                                               "megatron:tp=4,pp=2,ep=2,etp=2"),
                model, config),
      layout_of(*rc::gen::element<std::string>("vllm:tp=4", "vllm:tp=4,offset=3",
                                               "vllm:tp=2,offset=8", "hf:shards=5,offset=2"),
                model, config));
  int world = planner.ranks().members().back().value() + 1;
  CompileOptions options;
  std::vector<PairPath> ways;
  std::vector<Program> programs;

  CompiledGroup() {
    options.staging_bytes = *rc::gen::element<Index>(32 << 10, 64 << 10, 256 << 10);
    options.in_place_bytes = *rc::gen::element<Index>(1, 200, 1000, 10'000);
    options.world = world;
    ways = *rc::gen::container<std::vector<PairPath>>(
        static_cast<std::size_t>(world * world),
        rc::gen::element(PairPath::mapped, PairPath::get, PairPath::message, PairPath::message));
    for (const PairPath way : ways) {
      options.reads |= way != PairPath::message;
      options.gets |= way == PairPath::get;
    }
    for (int r = 0; r < world; ++r) {
      CompileOptions mine = options;
      mine.path_from = [this, r](Rank src) { return way(src.value(), r); };
      mine.path_to = [this, r](Rank dst) { return way(r, dst.value()); };
      programs.push_back(*compile_rank(planner, planner.rank_plan(Rank(r)), mine));
    }
  }
  PairPath way(int src, int dst) const { return ways[static_cast<std::size_t>(src * world + dst)]; }
};

RC_GTEST_PROP(CompiledMessages, both_ends_have_the_same, ()) {
  const CompiledGroup g;
  std::map<std::tuple<Rank, Rank, std::uint64_t>, Index> sent, received;
  for (const Program& program : g.programs)
    for (const ProgramMessage& m : program.messages) {
      const auto key = m.is_send ? std::tuple(program.rank, m.peer, m.id)
                                 : std::tuple(m.peer, program.rank, m.id);
      RC_ASSERT((m.is_send ? sent : received).emplace(key, m.bytes).second);
      RC_ASSERT(g.way(std::get<0>(key).value(), std::get<1>(key).value()) == PairPath::message);
    }
  RC_ASSERT(sent == received);
}

/// Counts how often each byte of a rank's targets is written.
std::map<BufferId, std::vector<int>> writes_of(const Program& program) {
  std::map<BufferId, std::vector<int>> out;
  const auto write = [&](BufferId id, Index at, Index bytes) {
    const ProgramBuffer& buffer = program.buffers[id.index()];
    if (buffer.kind != ProgramBuffer::Kind::target) return;
    auto& counts = out[id];
    counts.resize(static_cast<std::size_t>(buffer.bytes));
    RC_ASSERT(at >= 0 && at + bytes <= buffer.bytes);
    for (Index b = at; b < at + bytes; ++b) ++counts[static_cast<std::size_t>(b)];
  };
  for (const ProgramPiece& piece : program.pieces)
    for_each_run(piece.copy, [&](Index, Index dst, Index bytes) { write(piece.dst, dst, bytes); });
  for (const ProgramMessage& m : program.messages)
    if (!m.is_send) write(m.at.buffer, m.at.offset, m.bytes);
  return out;
}

RC_GTEST_PROP(CompiledMessages, every_byte_of_a_target_is_written_once, ()) {
  const CompiledGroup g;
  for (const Program& program : g.programs) {
    Index written = 0;
    int most = 0;
    for (const auto& [id, counts] : writes_of(program))
      for (const int n : counts) {
        most = std::max(most, n);
        written += n;
      }
    std::vector<Transfer> deliveries;
    g.planner.for_each_delivery(program.rank, [&](const Transfer& t) { deliveries.push_back(t); });
    Index wanted = 0;
    const auto moves = *copy_ops(g.planner, deliveries);
    for (const Move& m : moves) wanted += m.copy.bytes();
    RC_ASSERT(program.delivered() == wanted);
    RC_ASSERT(most <= 1);
    RC_ASSERT(written == wanted);
  }
}

/// Runs the group without moving a byte. An exchange is done once both ends of all its messages
/// have begun; each rank begins its exchanges in order.
RC_GTEST_PROP(CompiledMessages, no_group_of_ranks_deadlocks, ()) {
  const CompiledGroup g;
  std::map<std::tuple<Rank, Rank, std::uint64_t>, int> begun;
  const auto key = [](Rank me, const ProgramMessage& m) {
    return m.is_send ? std::tuple(me, m.peer, m.id) : std::tuple(m.peer, me, m.id);
  };
  std::vector<std::vector<int>> state;  // by rank and step: 0 waits, 1 has begun, 2 is done
  for (const Program& p : g.programs) state.emplace_back(p.steps.size(), 0);
  std::vector<int> at_barrier(2, 0);
  const auto barrier_of = [](std::size_t s) { return s == 0 ? std::size_t{0} : std::size_t{1}; };
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t r = 0; r < g.programs.size(); ++r) {
      const Program& p = g.programs[r];
      bool earlier_began = true;  // of the exchanges
      for (std::size_t s = 0; s < p.steps.size(); ++s) {
        int& mine = state[r][s];
        const ProgramStep& step = p.steps[s];
        const auto waits = p.waits_of(StepId(static_cast<std::uint32_t>(s)));
        const bool free =
            std::ranges::all_of(waits, [&](StepId w) { return state[r][w.index()] == 2; });
        if (mine == 0 && free && (step.kind != Kind::exchange || earlier_began)) {
          mine = step.kind == Kind::tile ? 2 : 1;
          moves = true;
          if (step.kind == Kind::barrier) ++at_barrier[barrier_of(s)];
          if (step.kind == Kind::exchange)
            for (const ProgramMessage& m : p.messages_of(step)) ++begun[key(p.rank, m)];
        }
        if (step.kind == Kind::exchange) earlier_began &= mine != 0;
        if (mine != 1) continue;
        const bool done =
            step.kind == Kind::barrier
                ? at_barrier[barrier_of(s)] == g.world
                : std::ranges::all_of(p.messages_of(step), [&](const ProgramMessage& m) {
                    return begun[key(p.rank, m)] == 2;
                  });
        if (!done) continue;
        mine = 2;
        moves = true;
      }
    }
  }
  for (const auto& steps : state)
    RC_ASSERT(std::ranges::all_of(steps, [](int s) { return s == 2; }));
}

/// The bytes of staging that a step uses.
std::vector<Interval> staging_of(const Program& p, const ProgramStep& step) {
  std::vector<Interval> out;
  if (step.kind == Kind::exchange)
    for (const ProgramMessage& m : p.messages_of(step))
      if (m.at.buffer == Builder::kStaging) out.emplace_back(m.at.offset, m.at.offset + m.bytes);
  if (step.kind == Kind::tile)
    for (const ProgramOp& op : p.ops_of(step))
      for (const ProgramPiece& piece : p.pieces_of(op)) {
        if (piece.src == Builder::kStaging) out.push_back(source_span(piece.copy));
        if (piece.dst == Builder::kStaging) out.push_back(destination_span(piece.copy));
      }
  return out;
}

bool overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  return std::ranges::any_of(a, [&](const Interval& x) {
    return std::ranges::any_of(
        b, [&](const Interval& y) { return x.begin() < y.end() && y.begin() < x.end(); });
  });
}

RC_GTEST_PROP(CompiledMessages, steps_at_the_same_time_have_staging_of_their_own, ()) {
  const CompiledGroup g;
  for (const Program& p : g.programs) {
    RC_ASSERT(p.staging_bytes + p.scratch_bytes <= g.options.staging_bytes);
    const std::size_t n = p.steps.size();
    std::vector<std::vector<Interval>> used;
    std::vector<std::vector<bool>> after(n, std::vector<bool>(n));  // [s][t]: s waits for t
    for (std::size_t s = 0; s < n; ++s) {
      used.push_back(staging_of(p, p.steps[s]));
      for (const Interval& i : used[s]) RC_ASSERT(i.begin() >= 0 && i.end() <= p.staging_bytes);
      for (const StepId w : p.waits_of(StepId(static_cast<std::uint32_t>(s)))) {
        RC_ASSERT(w.index() < s);
        after[s][w.index()] = true;
        for (std::size_t t = 0; t < w.index(); ++t)
          if (after[w.index()][t]) after[s][t] = true;
      }
      for (std::size_t t = 0; t < s && !used[s].empty(); ++t)
        if (!after[s][t] && !used[t].empty()) RC_ASSERT(!overlap(used[s], used[t]));
    }
  }
}

TEST(CompiledMessages, rounds_of_the_busiest_rank_are_a_quarter_full_or_more) {
  const ModelConfig config = wide_moe();
  const auto model = model_of(config);
  const Planner planner = *Planner::make(layout_of("megatron:tp=2,pp=2,ep=2,etp=1", model, config),
                                         layout_of("vllm:tp=4,offset=4", model, config));
  CompileOptions options;
  options.staging_bytes = 32 << 10;
  options.in_place_bytes = Index{1} << 40;
  options.world = 8;
  options.round_bits = 63;
  options.path_from = options.path_to = [](Rank) { return PairPath::message; };
  const auto compiled = [&] {
    std::vector<Program> out;
    for (int r = 0; r < options.world; ++r)
      out.push_back(*compile_rank(planner, planner.rank_plan(Rank(r)), options));
    return out;
  };
  for (const Program& p : compiled())
    options.round_bits = std::min(options.round_bits, p.round_bits);
  Index most = 0, rounds = 0;
  for (const Program& p : compiled()) {
    Index bytes = 0, exchanges = 0;
    for (const ProgramMessage& m : p.messages) bytes += m.bytes;
    for (const ProgramStep& s : p.steps) exchanges += s.kind == Kind::exchange ? 1 : 0;
    most = std::max(most, bytes);
    rounds = std::max(rounds, exchanges);
  }
  const Index least = most / (options.staging_bytes / 4) + 1;
  EXPECT_GT(least, 8);
  EXPECT_LE(rounds, 4 * least);
}

RC_GTEST_PROP(CompiledMessages, at_most_a_window_of_exchanges_is_in_progress, ()) {
  const CompiledGroup g;
  for (const Program& p : g.programs) {
    std::vector<StepId> exchanges;
    for (std::size_t s = 0; s < p.steps.size(); ++s) {
      if (p.steps[s].kind != Kind::exchange) continue;
      const StepId id(static_cast<std::uint32_t>(s));
      RC_ASSERT(!p.messages_of(p.steps[s]).empty());
      const auto waits = p.waits_of(id);
      if (exchanges.size() >= kWindow)
        RC_ASSERT(std::ranges::find(waits, exchanges[exchanges.size() - kWindow]) != waits.end());
      // Room for two: no exchange waits for its predecessor.
      if (!exchanges.empty()) RC_ASSERT(std::ranges::find(waits, exchanges.back()) == waits.end());
      exchanges.push_back(id);
    }
  }
}

TEST(Chains, with_too_many_messages_for_their_staging_are_refused) {
  ModelConfig config = tiny_dense();
  config.vocab_size = Index{1} << 20;
  config.hidden_size = Index{1} << 16;  // 128 GiB of embeddings
  const auto model = model_of(config);
  RelayOptions relays;
  relays.places = {{0, 1, 2}, {0, 1, 2}};
  const Planner planner =
      *Planner::make(layout_of("megatron:tp=1", model, config),
                     layout_of("megatron:tp=1,dp=2,offset=1", model, config),
                     {{}, {}, std::make_shared<const RelayOptions>(std::move(relays))});
  ASSERT_TRUE(planner.uses_relays());
  CompileOptions options;
  options.world = 3;
  options.staging_bytes = Index{32} << 10;
  options.path_from = options.path_to = [](Rank) { return PairPath::message; };
  const auto refused = compile_rank(planner, planner.rank_plan(Rank(1)), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_NE(refused.error().message.find("give ranks more staging"), std::string::npos);
  options.staging_bytes = Index{64} << 20;
  EXPECT_TRUE(compile_rank(planner, planner.rank_plan(Rank(1)), options));
}

}  // namespace
}  // namespace reshard::program
