// SPDX-License-Identifier: Apache-2.0
// Protects: sessions over `mpi`, between processes that mpirun started: a hundred versions of
// plain and quantised models, each proved; quantised sides that hold what the oracle says, and
// after a fault a whole version or a torn one.
#include "reshard/refit/session/quantised_faults_suite_testutil.h"
#include "reshard/refit/session/quantised_steady_testutil.h"
#include "reshard/refit/session/session_testutil.h"
#include "tests/mpi/launched_tests.h"

namespace reshard {
namespace {

class MpiSessions : public testing::TestWithParam<std::tuple<Buffering, RefitPath>> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, MpiSessions,
    testing::ValuesIn(combinations(std::vector{Buffering::in_place, Buffering::doubled},
                                   std::vector{RefitPath::automatic, RefitPath::message}, 2)));

TEST_P(MpiSessions, refit_many_versions) {
  const auto [buffering, path] = GetParam();
  const SessionLayouts job = overlapping_job();
  const auto ended =
      run_launched(job.ranks, [&, buffering = buffering, path = path](RankEnds& ends) {
        const SessionMemory memory(job, ends.rank(), {.shared = true});
        auto session = memory.prepare(ends, session_options(buffering, path, VerifyMode::always));
        ASSERT_EQ(outcome(session), "");
        for (std::int64_t version = 0; version < many_refits(); ++version) {
          memory.source_bytes.fill(memory.source, version);
          const auto report = session->refit(version);
          ASSERT_EQ(outcome(report), "");
          EXPECT_EQ(report->plan_seconds, 0);
          EXPECT_EQ(memory.wrong(session->target_version()), 0) << "version " << version;
        }
        EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
      });
  EXPECT_EQ(outcome(ended), "");
}

class MpiQuantised : public testing::TestWithParam<std::tuple<quantised::Case, quantised::Way>> {};
INSTANTIATE_TEST_SUITE_P(Formats, MpiQuantised,
                         testing::ValuesIn(quantised::half_of(quantised::few_cases(),
                                                              quantised::ways(), 1)));

TEST_P(MpiQuantised, hold_what_the_oracle_says) {
  const auto& [c, way] = GetParam();
  quantised::Job job(c);
  const auto ended = run_launched(c.ranks, [&, &way = way](RankEnds& ends) {
    quantised::run_as_rank(ends, job, way, 2, false);
  });
  EXPECT_EQ(outcome(ended), "");
}

class MpiQuantisedSteady : public testing::TestWithParam<std::tuple<quantised::Way, int>> {};
INSTANTIATE_TEST_SUITE_P(Ways, MpiQuantisedSteady,
                         testing::ValuesIn(combinations(quantised::few_fault_ways(),
                                                        std::vector{many_refits()}, 2, 1)));

TEST_P(MpiQuantisedSteady, refits_grow_nothing) {
  const auto& [way, refits] = GetParam();
  const quantised::Case c = quantised::small_case();
  const quantised::ChangingModel model(c);
  const auto ended = run_launched(c.ranks, [&, &way = way, refits = refits](RankEnds& ends) {
    quantised::refit_often(ends, model, way, refits, true);
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace

namespace quantised {
const TransportUnderTest kMpi{"mpi", run_launched};
RESHARD_TEST_QUANTISED_FAULTS(Mpi, kMpi);
}  // namespace quantised

}  // namespace reshard

int main(int argc, char** argv) { return reshard::run_launched_tests(argc, argv); }
