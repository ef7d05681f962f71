// SPDX-License-Identifier: Apache-2.0
// Protects: the slowest link, the rank that all waited for and the bound are those of the events.
#include "reshard/trace/why_slow.h"

#include <gtest/gtest.h>

#include "reshard/trace/busy_time.h"
#include "reshard/trace/trace_bytes.h"
#include "reshard/trace/trace_testutil.h"

namespace reshard {
namespace {

using Kind = TraceEvent::Kind;

TEST(WhySlow, names_the_rank_that_ends_last_and_the_one_that_begins_last) {
  const WhySlow why = why_slow(three_ranks());
  EXPECT_DOUBLE_EQ(why.seconds, 4e-3);
  EXPECT_EQ(why.slowest_rank, Rank(2));
  EXPECT_DOUBLE_EQ(why.behind_seconds, 1.9e-3);
  EXPECT_DOUBLE_EQ(why.waited_seconds, 1.9e-3 + 2.9e-3);
  EXPECT_EQ(why.late_rank, Rank(2));
  EXPECT_DOUBLE_EQ(why.late_seconds, 0.4e-3);
  EXPECT_DOUBLE_EQ(why.clock_error_seconds, 2e-6);
}

TEST(WhySlow, names_the_link_of_the_lowest_rate) {
  const WhySlow why = why_slow(three_ranks());
  EXPECT_EQ(why.link_from, Rank(0));
  EXPECT_EQ(why.link_to, Rank(2));
  EXPECT_EQ(why.link_bytes, 3'000'000);
  EXPECT_DOUBLE_EQ(why.link_seconds, 3e-3);
  EXPECT_DOUBLE_EQ(why.link_bytes_per_second(), 1e9);
  EXPECT_DOUBLE_EQ(why.fastest_link_per_second, 4e9);
}

TEST(WhySlow, does_not_blame_links_with_few_bytes) {
  GroupTrace trace = three_ranks();
  trace.ranks[1].events.push_back(event_of(Kind::send, 0, 3000, 100, 2, 9));
  trace.ranks[2].events.push_back(event_of(Kind::receive, 0, 3000, 100, 1, 9));
  EXPECT_EQ(why_slow(trace).link_from, Rank(0));
}

TEST(WhySlow, counts_a_tile_for_each_peer_that_it_reads_from) {
  GroupTrace trace;
  trace.ranks.push_back(rank_trace(
      0, {event_of(Kind::tile, 0, 1000, 4'000'000), event_of(Kind::read, 0, 1000, 1'000'000, 1),
          event_of(Kind::read, 0, 1000, 3'000'000, 2), event_of(Kind::tile, 1000, 2000, 500'000),
          event_of(Kind::read, 1000, 2000, 500'000, 1)}));
  const WhySlow why = why_slow(trace);
  EXPECT_EQ(why.link_from, Rank(1));
  EXPECT_EQ(why.link_bytes, 1'500'000);
  EXPECT_DOUBLE_EQ(why.link_seconds, 1.25e-3);
  EXPECT_DOUBLE_EQ(why.fastest_link_per_second, 4e9);
}

TEST(WhySlow, takes_the_plain_copy_for_the_bound_of_copies) {
  EXPECT_DOUBLE_EQ(why_slow(three_ranks(), 1.5e9).bound_seconds, 3e-3);
  EXPECT_EQ(why_slow(three_ranks(), 1.5e9).bound_by, "messages to rank 2");
  const WhySlow why = why_slow(three_ranks(), 0.75e9);
  EXPECT_DOUBLE_EQ(why.bound_seconds, 4e-3);
  EXPECT_EQ(why.bound_by, "copies of rank 2");
  EXPECT_DOUBLE_EQ(why.bound_fraction(), 1);
}

TEST(WhySlow, ignores_what_only_verifies) {
  GroupTrace group = three_ranks();
  const WhySlow before = why_slow(group);
  TraceEvent again = event_of(Kind::tile, 5000, 9000, 1 << 30);
  again.verifying = true;
  group.ranks[0].events.push_back(again);
  EXPECT_EQ(trace::encode_why_slow(why_slow(group)), trace::encode_why_slow(before));
}

TEST(WhySlow, of_nothing_says_so) {
  const WhySlow why = why_slow({});
  EXPECT_EQ(why.slowest_rank, Rank(-1));
  EXPECT_EQ(why.bound_fraction(), 0);
  EXPECT_EQ(why_slow_text(why), "  nothing moved in the traced refit\n");
}

TEST(WhySlow, is_told_in_a_few_lines) {
  EXPECT_EQ(why_slow_text(why_slow(three_ranks())),
            "  traced refit: 4.00 ms until all bytes were in place; 75 % of the bound (3.00 ms: "
            "messages to rank 2)\n"
            "  all waited for rank 2: 1.90 ms behind the median, 4.80 ms of waiting in all\n"
            "  slowest link: rank 0 to rank 2, 3.00 MB at 1.00 GB/s; the fastest has 4.00 GB/s\n"
            "  last to begin: rank 2, 400 us after the first\n");
}

TEST(BusyTime, counts_overlapping_intervals_once) {
  trace::BusyTime busy;
  EXPECT_EQ(busy.seconds(), 0);
  EXPECT_EQ(busy.best_rate(), 0);
  busy.add(0, 100, 10);
  busy.add(50, 150, 10);
  busy.add(300, 400, 10);
  EXPECT_DOUBLE_EQ(busy.seconds(), 250e-9);
}

TEST(BusyTime, has_the_best_rate_of_a_stretch) {
  trace::BusyTime busy;
  for (int i = 0; i < 8; ++i) busy.add(100 * i, 100 * (i + 1), 100);
  EXPECT_DOUBLE_EQ(busy.best_rate(), 1e9);
  busy.add(800, 850, 200);
  EXPECT_DOUBLE_EQ(busy.best_rate(), 4e9);
  // A burst of less than an eighth does not count alone.
  busy.add(850, 851, 10);
  EXPECT_NEAR(busy.best_rate(), 210 / 51e-9, 1);
}

TEST(BusyTime, does_not_trust_ends_that_are_noticed_together) {
  trace::BusyTime busy;
  for (int i = 0; i < 16; ++i) busy.add(0, 1000 + i, 100);
  EXPECT_NEAR(busy.best_rate(), 1600 / 1015e-9, 1);
}

}  // namespace
}  // namespace reshard
