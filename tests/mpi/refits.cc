// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over `mpi`, between processes that mpirun started,
// from the peers' memory and over messages.
#include <stdlib.h>

#include "reshard/exec/rank_refit_testutil.h"
#include "tests/mpi/launched_tests.h"

namespace reshard {
namespace {

const TransportUnderTest kMpi{"mpi", run_launched};
RESHARD_TEST_REFITS(Mpi, kMpi);

TEST(MpiRefit, takes_the_direct_path_on_one_host_and_messages_where_that_is_forbidden) {
  for (const bool allowed : {true, false}) {
    if (allowed) {
      unsetenv("RESHARD_SHM");
    } else {
      setenv("RESHARD_SHM", "ring", 1);
    }
    const RefitLayouts layouts = refit_layouts().front();
    const Planner planner = planner_of(layouts);
    RefitWay way{"automatic"};
    way.shared = true;
    way.takes = allowed ? "direct" : "message";
    const auto ended = run_launched(layouts.ranks, [&](RankEnds& ends) {
      EXPECT_EQ(ends.transport->capabilities().direct, allowed);
      EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
  unsetenv("RESHARD_SHM");
}

/// One rank does not permit access: all ranks choose another path together.
TEST(MpiRefit, one_rank_out_of_reach_takes_the_direct_path_from_all) {
  const RefitLayouts layouts = refit_layouts().front();
  const Planner planner = planner_of(layouts);
  RefitWay way{"automatic"};
  way.takes = "message";
  if (launched_rank() == 2) setenv("RESHARD_SHM", "ring", 1);
  const auto ended = run_launched(layouts.ranks, [&](RankEnds& ends) {
    EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
  });
  unsetenv("RESHARD_SHM");
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard

int main(int argc, char** argv) { return reshard::run_launched_tests(argc, argv); }
