// SPDX-License-Identifier: Apache-2.0
// Protects: the cheaper way to read a peer's memory is chosen.
#include "reshard/program/get_costs.h"

#include <gtest/gtest.h>

namespace reshard::program {
namespace {

/// `rows` runs of so many bytes, so far apart in the source, side by side at the destination.
StridedCopy rows_of(Index rows, Index run, Index pitch) {
  StridedCopy copy;
  copy.run_bytes = run;
  copy.num_loops = 1;
  copy.loops[0] = {rows, pitch, run};
  return copy;
}

TEST(GetCosts, runs_that_follow_each_other_in_the_source_are_one) {
  EXPECT_EQ(source_runs(rows_of(100, 64, 128)), 100);
  EXPECT_EQ(source_runs(rows_of(100, 64, 64)), 1);
  StridedCopy experts = rows_of(100, 64, 64);
  experts.num_loops = 2;
  experts.loops[1] = experts.loops[0];
  experts.loops[0] = {8, 10'000, 6400};
  EXPECT_EQ(source_runs(experts), 8);
  experts.loops[0].src_stride = 6400;
  EXPECT_EQ(source_runs(experts), 1);
}

TEST(GetCosts, short_dense_runs_are_swept_and_long_or_sparse_ones_are_not) {
  const auto sweeps = [](const StridedCopy& copy) {
    return cost_of_sweep(copy) < cost_of_runs(copy);
  };
  EXPECT_TRUE(sweeps(rows_of(1000, 192, 1536)));
  EXPECT_TRUE(sweeps(rows_of(1000, 768, 1536)));
  EXPECT_FALSE(sweeps(rows_of(1000, 768, 7000)));
  EXPECT_FALSE(sweeps(rows_of(1000, 1024, 1024)));  // one run of the source
  EXPECT_FALSE(sweeps(rows_of(1000, kLongRun, kLongRun + 1)));
}

TEST(GetCosts, a_copy_is_as_cheap_as_its_inner_loops_allow) {
  StridedCopy experts = rows_of(1000, 768, 1536);
  const double one = cost_of_get(experts);
  experts.num_loops = 2;
  experts.loops[1] = experts.loops[0];
  experts.loops[0] = {8, 100'000'000, 768'000};
  EXPECT_GT(cost_of_sweep(experts), cost_of_runs(experts));
  EXPECT_NEAR(cost_of_get(experts), 8 * one, one);
}

TEST(GetCosts, messages_are_much_cheaper_for_a_small_part_of_each_row_only) {
  const Index in_place = Index{64} << 10;
  const auto messages = [&](const StridedCopy& copy) {
    return 2 * cost_of_message(copy, in_place) < cost_of_get(copy);
  };
  EXPECT_FALSE(messages(rows_of(10'000, 768, 1536)));
  EXPECT_TRUE(messages(rows_of(10'000, 192, 1536)));
  EXPECT_FALSE(messages(rows_of(10'000, 1440, 1600)));
  EXPECT_FALSE(messages(rows_of(10'000, 8192, 16384)));
  StridedCopy run;
  run.run_bytes = Index{1} << 20;
  EXPECT_FALSE(messages(run));
  run.run_bytes = 64;
  EXPECT_TRUE(messages(run));
}

}  // namespace
}  // namespace reshard::program
