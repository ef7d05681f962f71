// SPDX-License-Identifier: Apache-2.0
// Protects: traces travel between ranks unchanged, and no bytes of a peer are trusted.
#include "reshard/trace/trace_bytes.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/trace/gather_trace.h"
#include "reshard/trace/trace_testutil.h"
#include "reshard/trace/why_slow.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::trace {
namespace {

RankTrace rich_trace() {
  RankTrace trace = three_ranks().ranks[0];
  trace.names = {"", "model.layers.0.mlp", "\x01 odd \xff name"};
  trace.dropped = 3;
  trace.events[0].name = 2;
  trace.events[0].worker = 1;
  trace.events[1].begin_ns = -5;
  trace.events[2].ops = TraceEvent::kPacks | 1;
  trace.events[2].verifying = true;
  trace.events[3].unfinished = true;
  trace.events[4].message = ~std::uint64_t{0};
  trace.events[5].run = trace.events[5].step = ~std::uint32_t{0};
  return trace;
}

TEST(TraceBytes, restore_every_field) {
  const RankTrace trace = rich_trace();
  const auto back = decode_trace(encode_trace(trace), Rank(0), 3);
  ASSERT_EQ(outcome(back), "");
  EXPECT_EQ(*back, trace);
}

TEST(TraceBytes, with_peers_names_or_workers_that_do_not_exist_are_refused) {
  const RankTrace trace = rich_trace();
  EXPECT_EQ(decode_trace(encode_trace(trace), Rank(0), 1).error().code, Code::corrupt);
  RankTrace wrong = trace;
  wrong.events[0].name = 3;
  EXPECT_NE(outcome(decode_trace(encode_trace(wrong), Rank(0), 3)), "");
  wrong = trace;
  wrong.events[0].worker = 2;
  EXPECT_NE(outcome(decode_trace(encode_trace(wrong), Rank(0), 3)), "");
  wrong = trace;
  wrong.events[0].begin_ns = -(std::int64_t{1} << 62);
  wrong.events[0].end_ns = wrong.events[0].begin_ns;
  EXPECT_NE(outcome(decode_trace(encode_trace(wrong), Rank(0), 3)), "");
}

RC_GTEST_PROP(TraceBytes, with_any_byte_changed_or_cut_give_a_valid_trace_or_an_error, ()) {
  auto bytes = encode_trace(rich_trace());
  const auto changes = *rc::gen::inRange(0, 4);
  for (int i = 0; i < changes; ++i)
    bytes[*rc::gen::inRange<std::size_t>(0, bytes.size())] =
        static_cast<std::byte>(*rc::gen::inRange(0, 256));
  bytes.resize(*rc::gen::inRange<std::size_t>(0, bytes.size() + 1));
  const auto trace = decode_trace(bytes, Rank(1), 3);
  if (!trace) return;
  for (const TraceEvent& e : trace->events) {
    RC_ASSERT(e.begin_ns <= e.end_ns);
    RC_ASSERT(e.name < trace->names.size());
    RC_ASSERT(e.peer.value() < 3);
  }
}

TEST(TraceBytes, that_promise_many_events_allocate_none) {
  std::vector<std::byte> bytes(6, std::byte{0});
  bytes[0] = std::byte{1};
  bytes.resize(5);
  bytes.insert(bytes.end(), {std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0x7f}});
  EXPECT_EQ(decode_trace(bytes, Rank(0), 3).error().code, Code::corrupt);
}

TEST(WhySlowBytes, restore_every_field_and_are_checked) {
  WhySlow why = why_slow(three_ranks());
  why.problem = "no space";
  why.dropped = 9;
  const auto bytes = encode_why_slow(why);
  const auto back = decode_why_slow(bytes, 3);
  ASSERT_EQ(outcome(back), "");
  EXPECT_EQ(why_slow_text(*back), why_slow_text(why));
  EXPECT_EQ(back->problem, "no space");
  EXPECT_EQ(encode_why_slow(*back), bytes);
  EXPECT_NE(outcome(decode_why_slow(bytes, 1)), "");
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_NE(outcome(decode_why_slow(std::span(bytes).first(n), 3)), "");
}

TEST(GatherTrace, gives_rank_0_all_events_on_its_clock) {
  const GroupTrace traces = three_ranks();
  const std::vector<ClockOffset> clocks{{}, {1000, 40}, {-500, 90}};
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                3,
                [&](RankEnds& ends) {
                  const RankTrace& mine = traces.ranks[ends.rank().index()];
                  auto all = gather_trace(mine, clocks, *ends.transport, *ends.control, patient());
                  ASSERT_EQ(outcome(all), "");
                  ASSERT_EQ(all->has_value(), ends.rank() == Rank(0));
                  if (!*all) return;
                  EXPECT_EQ((*all)->clock_error_ns, 90);
                  for (std::size_t r = 0; r < 3; ++r) {
                    RankTrace expected = traces.ranks[r];
                    align_trace(expected, clocks[r]);
                    EXPECT_EQ((*all)->ranks[r], expected);
                  }
                  EXPECT_EQ((*all)->ranks[1].events[0].begin_ns, 51'000);
                })),
            "");
}

TEST(TraceRecorder, keeps_what_fits_and_counts_the_rest) {
  TraceRecorder recorder(2);
  for (int i = 0; i < 5; ++i) recorder.add(TraceEvent::Kind::phase, "begin", i, i + 1);
  EXPECT_EQ(recorder.trace().events.size(), 2U);
  EXPECT_EQ(recorder.trace().dropped, 3);
  EXPECT_EQ(recorder.trace().names, (std::vector<std::string>{"", "begin"}));
  recorder.restart();
  EXPECT_TRUE(recorder.trace().events.empty());
  EXPECT_EQ(recorder.trace().dropped, 0);
  EXPECT_EQ(recorder.name(std::string(1000, 'x')), 2U);
  EXPECT_EQ(recorder.trace().names[2].size(), TraceRecorder::kMaxNameBytes);
}

}  // namespace
}  // namespace reshard::trace
