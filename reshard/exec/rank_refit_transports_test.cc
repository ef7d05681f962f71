// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over every built-in transport, with ranks that are
// threads and ranks that are processes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <csignal>

#include "reshard/exec/rank_refit_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/fault_testutil.h"
#include "reshard/transport/testing/loopback_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kInproc{"inproc", run_group_as_threads<InprocGroup>};
RESHARD_TEST_REFITS(Inproc, kInproc);

// What the backends with an external library have in common: the message matcher, over a wire that
// disturbs it.
const TransportUnderTest kPull{"pull", run_group_as_threads<LoopbackGroup<LoopbackMethod::pull>>};
const TransportUnderTest kPlace{"place", run_group_as_threads<LoopbackGroup<LoopbackMethod::put>>};
const TransportUnderTest kTagged{"tagged",
                                 run_group_as_threads<LoopbackGroup<LoopbackMethod::tagged>>};
RESHARD_TEST_REFITS(EnginePull, kPull);
RESHARD_TEST_REFITS(EnginePlace, kPlace);
RESHARD_TEST_REFITS(EngineTagged, kTagged);

const TransportUnderTest kShm{"shm", shm_processes("mapped,readv,ring")};
const TransportUnderTest kShmRing{"shm", shm_processes("ring,passed")};
RESHARD_TEST_REFITS(Shm, kShm);
RESHARD_TEST_REFITS(ShmRing, kShmRing);

RC_GTEST_PROP(RefitOverProcesses, puts_every_element_of_random_layouts_in_place, ()) {
  const auto model = random_model();
  const auto from = random_layout(model, RandomForms::any);
  const auto to = random_layout(model, RandomForms::any);
  const Planner planner = *Planner::make(from, to);
  const auto ways = refit_ways();
  const RefitWay& way = *rc::gen::elementOf(ways);
  const int world = planner.ranks().members().back().value() + *rc::gen::inRange(1, 3);
  const auto ended = kShm.run(
      world, [&](RankEnds& ends) { EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), ""); });
  RC_ASSERT(outcome(ended) == "");
  RC_ASSERT(!testing::Test::HasFailure());
}

/// Rank 1 of seven on `hosts` hosts is killed before one of its messages, or after `prepare` when
/// that is negative. All other ranks get an error that says what happened to the targets, or to the
/// preparation.
void expect_errors_of_all(RefitPath path, int message, int hosts = 1) {
  const Planner planner = planner_of(
      {"overlapping", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=3"});
  const Rank doomed(1);
  ProcessOptions killed;
  killed.doomed = {doomed.value()};
  const auto run = shm_processes("mapped,readv,ring", killed);
  const auto ended = run(7, [&](RankEnds& ends) {
    const bool dies = ends.rank() == doomed;
    if (dies && message >= 0) {
      FaultPlan plan{{{Fault::Kind::kill, static_cast<std::uint64_t>(message), 1}}, 0};
      plan.on_kill = [] { raise(SIGKILL); };
      ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
    }
    RefitWay way{"killed", Limit::none, path, Index{32} << 10, 1024};
    way.shared = true;
    way.hosts = hosts;
    way.before_run = [&] {
      if (dies && message < 0) raise(SIGKILL);
    };
    expect_error(refit_as_rank(ends, planner, way), Code::aborted, {"rank 1"});
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(RefitOverProcesses, a_killed_rank_is_an_error_of_all_over_messages) {
  for (const int message : {-1, 0, 7, 40, 100}) expect_errors_of_all(RefitPath::message, message);
}
TEST(RefitOverProcesses, a_killed_rank_is_an_error_of_all_from_memory) {
  for (const int message : {-1, 0, 3}) expect_errors_of_all(RefitPath::direct, message);
}
TEST(RefitOverProcesses, a_killed_rank_is_an_error_of_all_between_two_hosts) {
  for (const int message : {-1, 0, 7, 15}) expect_errors_of_all(RefitPath::automatic, message, 2);
}

}  // namespace
}  // namespace reshard
