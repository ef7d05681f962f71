// SPDX-License-Identifier: Apache-2.0
// Protects: clocks that differ are aligned, and the error is never larger than what is promised.
#include "reshard/trace/clock_offset.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>

#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::trace {
namespace {

/// Barriers of two ranks, of which `other`'s clock shows `skew` less. Ranks arrive at any time, and
/// return at any time after both have.
RC_GTEST_PROP(ClockOffsets, are_wrong_by_the_error_at_most, (std::int32_t skew)) {
  const auto rounds = *rc::gen::container<std::vector<std::array<std::uint16_t, 4>>>(
      rc::gen::arbitrary<std::array<std::uint16_t, 4>>());
  std::vector<ClockRound> rank_0, other;
  std::int64_t now = 1'000'000;
  for (const auto& [first, second, back, back_other] : rounds) {
    const std::int64_t both = now + std::max(first, second);
    rank_0.push_back({now + first, both + back});
    other.push_back({now + second - skew, both + back_other - skew});
    now = both + std::max(back, back_other);
  }
  const ClockOffset found = clock_offset(rank_0, other);
  if (rounds.empty()) return;
  RC_ASSERT(std::abs(found.offset_ns - skew) <= found.error_ns);
  RC_ASSERT(found.error_ns <= 0xffff);
}

TEST(ClockOffsets, narrow_with_each_round) {
  const std::vector<ClockRound> rank_0{{0, 100}, {200, 230}}, other{{1000, 1100}, {1205, 1235}};
  EXPECT_EQ(clock_offset(std::span(rank_0).first(1), other).error_ns, 100);
  EXPECT_EQ(clock_offset(rank_0, other).error_ns, 30);
  EXPECT_EQ(clock_offset(rank_0, other).offset_ns, -1005);
  EXPECT_EQ(clock_offset({}, {}).error_ns, 0);
}

TEST(ClockOffsets, of_ranks_with_skewed_clocks_are_identical_on_all_ranks) {
  constexpr std::int64_t kSkew = 5'000'000'000;
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                3,
                [&](RankEnds& ends) {
                  const std::int64_t skew = kSkew * ends.rank().value();
                  const auto found =
                      align_clocks(*ends.control, patient(), [&] { return trace_now_ns() - skew; });
                  ASSERT_EQ(outcome(found), "");
                  ASSERT_EQ(found->size(), 3U);
                  EXPECT_EQ((*found)[0].offset_ns, 0);
                  for (int r = 0; r < 3; ++r) {
                    const ClockOffset& of_rank = (*found)[static_cast<std::size_t>(r)];
                    EXPECT_LE(std::abs(of_rank.offset_ns - kSkew * r), of_rank.error_ns);
                  }
                })),
            "");
}

}  // namespace
}  // namespace reshard::trace
