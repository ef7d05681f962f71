// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over every transport that is built in, with ranks
// that are threads and ranks that are processes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/exec/rank_refit_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/transport/inproc.h"
#include "reshard/transport/loopback_testutil.h"
#include "reshard/transport/shm_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kInproc{"inproc", run_group_as_threads<InprocGroup>};
RESHARD_TEST_REFITS(Inproc, kInproc);

// What the backends with an external library have in common: the message engine, over a wire that
// disturbs it.
const TransportUnderTest kPull{"pull", run_group_as_threads<LoopbackGroup<LoopbackWay::pull>>};
const TransportUnderTest kPlace{"place", run_group_as_threads<LoopbackGroup<LoopbackWay::place>>};
const TransportUnderTest kTagged{"tagged",
                                 run_group_as_threads<LoopbackGroup<LoopbackWay::tagged>>};
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

}  // namespace
}  // namespace reshard
