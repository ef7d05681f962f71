// SPDX-License-Identifier: Apache-2.0
// Protects: `reshard run --device cuda` brings weights to a GPU, refits there and brings back the
// result.
#include "cli/run/device_run.h"

#include <gtest/gtest.h>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"

namespace reshard::cli {
namespace {

TEST(DeviceRun, RefitsOnTheGpu) {
  for (const RefitLayouts& layouts : refit_layouts()) {
    const Planner planner = planner_of(layouts);
    const RankBuffers source = allocate_all(planner.shared_source()),
                      target = allocate_all(planner.shared_target());
    fill_values(source);
    const auto runs =
        run_on_device({.layout = planner.shared_source(), .buffers = &source},
                      {.layout = planner.shared_target(), .buffers = &target},
                      {.repeat = 3, .check_fingerprints = true}, cuda::gpu_under_test());
    ASSERT_EQ(outcome(runs), "");
    EXPECT_EQ(count_wrong_values(planner, target), 0);
    EXPECT_EQ(runs->seconds.size(), 3U);
    EXPECT_GT(runs->bytes, 0);
    EXPECT_GT(runs->plain_seconds, 0);
    EXPECT_GT(runs->check_seconds, 0);
  }
}

TEST(DeviceRun, NumbersOfGpus) {
  EXPECT_EQ(parse_gpu("cuda"), RunArguments::kAnyGpu);
  EXPECT_EQ(parse_gpu("cuda:3"), 3);
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:99999", "cpu:0"})
    EXPECT_FALSE(parse_gpu(wrong)) << wrong;
}

}  // namespace
}  // namespace reshard::cli
