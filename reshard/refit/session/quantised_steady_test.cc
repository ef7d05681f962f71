// SPDX-License-Identifier: Apache-2.0
// Protects: a session with a quantised target does hundreds of refits without growing memory: it
// plans nothing and allocates nothing, and every version is verified and right.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "reshard/refit/session/quantised_steady_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard::quantised {
namespace {

/// Long: without optimisation, or under a sanitizer, a thousand refits take minutes.
const ProcessOptions kPatient{.limit = std::chrono::seconds(500), .doomed = {}};

TEST(QuantisedSteady, allocates_nothing) {
  const Case c = small_case();
  for (const Way& way : fault_ways()) {
    if (way.path != RefitPath::direct) continue;
    Job job(c);
    job.fill(1);
    std::atomic<std::int64_t> early{0}, late{0};
    const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&](RankEnds& ends) {
      const Memory memory(job, ends.rank());
      PublishedVersion published;
      SessionOptions options = options_of(way);
      options.verify = VerifyMode::never;
      auto session = Session::prepare(*ends.transport, *ends.control, memory.source(job),
                                      memory.target(job, published), options);
      ASSERT_EQ(outcome(session), "");
      copy_to(*job.source.stored, memory.from, ends.rank());
      for (int version = 0; version < 300; ++version) {
        ASSERT_TRUE(ends.control->barrier(patient()));
        const CountAllocations counted;
        ASSERT_TRUE(ends.control->barrier(patient()));
        ASSERT_EQ(outcome(session->refit(version)), "");
        ASSERT_TRUE(ends.control->barrier(patient()));
        const std::int64_t count = counted.everywhere();
        ASSERT_TRUE(ends.control->barrier(patient()));
        if (ends.rank() == Rank(0) && version == 20) early = count;
        if (ends.rank() == Rank(0) && version == 299) late = count;
      }
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
    EXPECT_EQ(early, 0) << way.name;
    EXPECT_EQ(late, 0) << way.name;
  }
}

class QuantisedThousand : public testing::TestWithParam<Way> {};
/// Both places to quantise, both paths, one copy and two: each pair of them once.
INSTANTIATE_TEST_SUITE_P(Ways, QuantisedThousand, testing::ValuesIn(few_fault_ways()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(QuantisedThousand, refits_between_threads_grow_nothing) {
  const ChangingModel model(small_case());
  EXPECT_EQ(
      outcome(run_group_as_threads<InprocGroup>(
          small_case().ranks,
          [&](RankEnds& ends) { refit_often(ends, model, GetParam(), many_refits(), false); })),
      "");
}

TEST_P(QuantisedThousand, refits_between_processes_grow_nothing) {
  const ChangingModel model(small_case());
  EXPECT_EQ(
      outcome(shm_processes("mapped,readv,ring", kPatient)(
          small_case().ranks,
          [&](RankEnds& ends) { refit_often(ends, model, GetParam(), many_refits(), true); })),
      "");
}

}  // namespace
}  // namespace reshard::quantised
