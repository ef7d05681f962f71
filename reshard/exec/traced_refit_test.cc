// SPDX-License-Identifier: Apache-2.0
// Protects: the events of a refit have every byte of the plan, in the order in which they moved;
// and a refit without a recorder has none.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/trace/gather_trace.h"
#include "reshard/trace/message_pairs.h"
#include "reshard/trace/program_times.h"
#include "reshard/trace/why_slow.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard::trace {
namespace {

using Kind = TraceEvent::Kind;
using Volumes = std::map<std::pair<Rank, Rank>, Index>;

/// Bytes of each pair of ranks, by the plan.
Volumes planned(const Planner& planner, int ranks) {
  Volumes volumes;
  for (int r = 0; r < ranks; ++r)
    for (const Transfer& t : planner.rank_plan(Rank(r)).recvs)
      volumes[{t.src, t.dst}] += t.box.volume() * planner.element_bits(t.tensor) / 8;
  return volumes;
}

Volumes arrived(const GroupTrace& trace) {
  Volumes volumes;
  for (const RankTrace& rank : trace.ranks)
    for (const TraceEvent& e : rank.events)
      if (e.kind == Kind::read || e.kind == Kind::receive) volumes[{e.peer, rank.rank}] += e.bytes;
  return volumes;
}

/// Tiles, barriers and waits of one worker do not overlap, and all events lie between two times.
void expect_in_order(const RankTrace& rank, std::int64_t begin, std::int64_t end) {
  std::map<int, std::vector<TraceEvent>> workers;
  for (const TraceEvent& e : rank.events) {
    EXPECT_LE(begin, e.begin_ns);
    EXPECT_LE(e.begin_ns, e.end_ns);
    EXPECT_LE(e.end_ns, end);
    EXPECT_FALSE(e.unfinished);
    if (e.kind == Kind::tile || e.kind == Kind::barrier || e.kind == Kind::wait)
      workers[e.worker].push_back(e);
  }
  for (auto& [worker, events] : workers) {
    EXPECT_LT(worker, rank.workers);
    std::ranges::sort(events, {}, &TraceEvent::begin_ns);
    for (std::size_t i = 1; i < events.size(); ++i)
      EXPECT_LE(events[i - 1].end_ns, events[i].begin_ns) << "worker " << worker;
  }
}

void expect_messages(const GroupTrace& trace) {
  std::size_t sends = 0, receives = 0;
  for (const RankTrace& rank : trace.ranks)
    for (const TraceEvent& e : rank.events) {
      sends += e.kind == Kind::send ? 1 : 0;
      receives += e.kind == Kind::receive ? 1 : 0;
    }
  const auto pairs = message_pairs(trace);
  EXPECT_EQ(pairs.size(), sends);
  EXPECT_EQ(pairs.size(), receives);
  for (const MessagePair& pair : pairs) {
    EXPECT_EQ(pair.sent->bytes, pair.received->bytes);
    EXPECT_GE(pair.received->end_ns + 2 * trace.clock_error_ns, pair.sent->begin_ns);
  }
}

/// One way to run a refit.
struct Way {
  const char* name;
  RefitPath path = RefitPath::automatic;
  Index staging_bytes = Index{64} << 20, in_place_bytes = Index{64} << 10;
  int hosts = 1;  ///< of the group; memory of other hosts cannot be opened.
};

RankBuffers memory_of(const std::shared_ptr<const ModelLayout>& layout, Rank me) {
  const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
  return *RankBuffers::allocate(layout, ranks, {.shared = true});
}

/// One rank: two traced refits, of which rank 0 looks at the second.
Result<> trace_as_rank(RankEnds& ends, const Planner& planner, const Way& way, int ranks) {
  const RankBuffers source = memory_of(planner.shared_source(), ends.rank());
  const RankBuffers target = memory_of(planner.shared_target(), ends.rank());
  LimitedTransport transport(std::move(ends.transport), Limit::none, way.hosts);
  TraceRecorder recorder(1 << 16);
  RankRefitOptions options;
  options.path = way.path;
  options.staging_bytes = way.staging_bytes;
  options.in_place_bytes = way.in_place_bytes;
  options.threads = 2;
  RankRefitHooks hooks;
  hooks.trace = &recorder;
  auto refit = RESHARD_TRY(RankRefit::prepare(planner, source.ranks().empty() ? nullptr : &source,
                                              target.ranks().empty() ? nullptr : &target, transport,
                                              *ends.control, options, hooks));
  EXPECT_TRUE(recorder.trace().events.empty());
  for (int i = 0; i < 2; ++i) {
    recorder.restart();
    const std::int64_t begin = trace_now_ns();
    RESHARD_TRY(refit.run());
    expect_in_order(recorder.trace(), begin, trace_now_ns());
  }
  const auto clocks = RESHARD_TRY(align_clocks(*ends.control, patient()));
  const auto all =
      RESHARD_TRY(gather_trace(recorder.trace(), clocks, transport, *ends.control, patient()));
  if (all) {
    EXPECT_EQ(arrived(*all), planned(planner, ranks));
    expect_messages(*all);
    const WhySlow why = why_slow(*all);
    EXPECT_GE(why.slowest_rank, Rank(0));
    EXPECT_GT(why.bound_seconds, 0);
    EXPECT_GT(why.seconds, 0);
    EXPECT_EQ(why.dropped, 0);
  }
  return ends.control->quiesce(patient());
}

class TracedRefit : public testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TracedRefit,
                         testing::Values(TransportUnderTest{"threads",
                                                            run_group_as_threads<InprocGroup>},
                                         TransportUnderTest{"processes", shm_processes("mapped")}),
                         [](const auto& of) { return of.param.name; });

TEST_P(TracedRefit, has_every_byte_of_the_plan) {
  const Way ways[] = {{"direct"},
                      {"messages", RefitPath::message},
                      {"in_place", RefitPath::message, Index{32} << 10, 64},
                      {"two_hosts", RefitPath::automatic, Index{32} << 10, 1024, 2}};
  const auto model = model_of(wide_moe());
  const Planner planner =
      *Planner::make(layout_of("megatron:tp=2,pp=2,ep=2,etp=1", model, wide_moe()),
                     layout_of("vllm:tp=4,offset=3", model, wide_moe()));
  constexpr int kRanks = 8;  // One rank has both sides, the last neither.
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const auto body = [&](RankEnds& ends) {
      EXPECT_EQ(outcome(trace_as_rank(ends, planner, way, kRanks)), "");
    };
    EXPECT_EQ(outcome(GetParam().run(kRanks, body)), "");
  }
}

TEST(ProgramTimes, merge_waits_and_mark_what_an_error_ended) {
  Program program;
  program.rank = Rank(0);
  program.steps.resize(2);
  program.steps[1].kind = ProgramStep::Kind::exchange;
  program.messages.push_back({Rank(1), 4, true, {}, 100});
  program.buffers.emplace_back();
  program.steps[1].end = 1;
  TraceRecorder recorder(100);
  ProgramTimes times(program, 2, recorder, nullptr);
  times.start();
  times.begin(StepId(0), 1);
  times.end(StepId(0));
  times.begin(StepId(1), 0);
  const std::int64_t long_ago = trace_now_ns() - 1'000'000;
  times.waited(0, Awaited::messages, StepId(1), long_ago);
  times.waited(0, Awaited::messages, StepId(1), trace_now_ns());
  times.waited(1, Awaited::tiles, StepId(0), long_ago);
  times.finish(true);
  const auto& events = recorder.trace().events;
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0].kind, Kind::tile);
  EXPECT_EQ(events[0].worker, 1);
  EXPECT_FALSE(events[0].unfinished);
  EXPECT_EQ(events[1].kind, Kind::exchange);
  EXPECT_TRUE(events[1].unfinished);
  EXPECT_EQ(events[2].kind, Kind::send);
  EXPECT_EQ(events[2].peer, Rank(1));
  EXPECT_EQ(events[2].message, 4U);
  EXPECT_EQ(events[3].kind, Kind::wait);
  EXPECT_EQ(recorder.trace().names[events[3].name], "messages");
  EXPECT_EQ(recorder.trace().names[events[4].name], "tiles");
  for (const TraceEvent& e : events) EXPECT_TRUE(e.verifying);
}

}  // namespace
}  // namespace reshard::trace
