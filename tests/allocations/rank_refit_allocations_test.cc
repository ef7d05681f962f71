// SPDX-License-Identifier: Apache-2.0
// Protects: in steady state, a refit between ranks allocates nothing, however many pieces it has.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "reshard/exec/rank_refit_testutil.h"
#include "reshard/refit/session/allocation_count_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard {
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RefitOverTransport);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RelaysOverTransport);
namespace {

constexpr int kWarm = 4, kCounted = 12;

/// Allocations of one rank's thread in each of its counted runs, after the first have made room.
Result<std::vector<std::int64_t>> count_as_rank(RankEnds& ends, const Planner& planner,
                                                const RefitWay& way) {
  RefitRank mine(ends, planner, way);
  RankRefit refit = RESHARD_TRY(mine.prepare(planner, *ends.control, way));
  EXPECT_EQ(refit.path(), way.takes) << refit.reason();
  for (int i = 0; i < kWarm; ++i) RESHARD_TRY(refit.run());
  std::vector<std::int64_t> counts;
  counts.reserve(kCounted);
  for (int i = 0; i < kCounted; ++i) {
    const CountAllocations counted;
    RESHARD_TRY(refit.run());
    counts.push_back(counted.here());
  }
  RESHARD_TRY(ends.control->quiesce(patient()));
  return counts;
}

std::vector<RefitWay> ways() {
  constexpr Index kLeast = Index{32} << 10, kMax = Index{64} << 20;
  return {
      {"direct", Limit::none, RefitPath::direct, kMax, Index{64} << 10, "direct", true},
      {"by_get", Limit::no_address, RefitPath::direct, kMax, Index{64} << 10, "direct", true},
      {"messages", Limit::none, RefitPath::message, kMax, Index{64} << 10, "message", true},
      {"small_messages", Limit::none, RefitPath::message, kLeast, 64, "message", true},
  };
}

void expect_none(const TransportUnderTest& transport, const RefitWay& way) {
  SCOPED_TRACE(transport.name + " " + way.name);
  const Planner planner = planner_of(
      {"overlapping", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=3"});
  const auto ended = transport.run(7, [&](RankEnds& ends) {
    const auto counts = count_as_rank(ends, planner, way);
    ASSERT_TRUE(counts) << outcome(counts);
    // How many messages come before they are expected differs from run to run, and the room for
    // the most is kept: a run may still add to it, but not each.
    const auto [least, most] = std::ranges::minmax(*counts);
    EXPECT_EQ(way.path == RefitPath::direct ? most : least, 0U)
        << "rank " << ends.control->rank().value() << ", " << testing::PrintToString(*counts);
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(RankRefitAllocations, are_none_between_threads) {
  for (const RefitWay& way : ways())
    expect_none({"inproc", run_group_as_threads<InprocGroup>}, way);
}

TEST(RankRefitAllocations, are_none_between_processes) {
  for (const RefitWay& way : ways()) expect_none({"shm", shm_processes("mapped,readv,ring")}, way);
  for (const RefitWay& way : ways())
    if (way.path == RefitPath::message) expect_none({"shm ring", shm_processes("ring")}, way);
}

/// Ranks as threads that have joined like processes, so that all threads of the control plane are
/// in this process, the one that serves it among them.
TEST(RankRefitAllocations, are_none_in_the_threads_of_the_control_plane) {
  const Planner planner = planner_of(
      {"overlapping", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=3"});
  const auto make = [](ControlPlane& control) { return shm::make_transport(control, {}); };
  const auto ended = run_joined_threads(7, make, [&](RankEnds& ends) {
    const RefitWay way = ways().front();
    RefitRank mine(ends, planner, way);
    auto refit = mine.prepare(planner, *ends.control, way);
    ASSERT_EQ(outcome(refit), "");
    std::array<std::byte, 88> record{};
    std::array<std::byte, 7 * 88> all{};
    for (int i = 0; i < kWarm + kCounted; ++i) {
      ASSERT_TRUE(ends.control->barrier(patient()));
      const CountAllocations counted;
      ASSERT_TRUE(ends.control->barrier(patient()));
      ASSERT_EQ(outcome(refit->run()), "");
      ASSERT_EQ(outcome(ends.control->all_gather_into(record, all, patient())), "");
      ASSERT_TRUE(ends.control->barrier(patient()));
      const std::int64_t count = counted.everywhere();
      ASSERT_TRUE(ends.control->barrier(patient()));
      if (i >= kWarm) {
        EXPECT_EQ(count, 0);
      }
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard
