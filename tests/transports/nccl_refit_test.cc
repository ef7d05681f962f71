// SPDX-License-Identifier: Apache-2.0
// Protects: a refit between ranks with GPUs puts every element in place over NCCL, from and to
// tensors in place and over staging in the memory of the GPUs; and one that quantises holds what
// the oracle says.
#include <gtest/gtest.h>

#include <map>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/exec/rank_refit_testutil.h"
#include "reshard/gpu_transport/nccl/nccl_group_testutil.h"
#include "reshard/refit/session/quantised_suite_testutil.h"

namespace reshard {
namespace {

/// Ranks as threads that share the GPU under test, over the model of NCCL.
Result<> run(int n, const RankBody& body) {
  nccl::GroupLimits limits;
  limits.segment_bytes = limits.host_bytes = std::size_t{64} << 10;
  return nccl::run_nccl_ranks(n, body, limits, cuda::gpu_under_test());
}

const TransportUnderTest kNccl{"nccl", run};
RESHARD_TEST_REFITS(Nccl, kNccl);

TEST(RefitsOverNccl, move_large_runs_in_place_and_stage_short_ones_on_the_gpu) {
  // Equal layouts on two ranks: every tensor is one run, most of more than 64 bytes.
  const RefitLayouts layouts{"moved", wide_moe(), "vllm:tp=1", "vllm:tp=1,offset=1", 2};
  const Planner planner = planner_of(layouts);
  std::map<bool, int> launches;
  for (const bool in_place : {false, true}) {
    nccl::nccl_model().reset();
    cuda::emulated_gpu().reset();
    RefitWay way{.name = "gpus",
                 .path = RefitPath::message,
                 .in_place_bytes = in_place ? Index{64} : Index{1} << 40,
                 .takes = "message",
                 .gpu_source = every_rank,
                 .gpu_target = every_rank};
    const auto ended = run(layouts.ranks, [&](RankEnds& ends) {
      EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
    });
    EXPECT_EQ(outcome(ended), "");
    launches[in_place] = cuda::emulated_gpu().calls["cuLaunchKernel"];
    EXPECT_GT(nccl::nccl_model().calls["ncclCommRegister"], 0);
    // The lanes pin what host messages pass; a rank's staging is on its GPU.
    EXPECT_EQ(cuda::emulated_gpu().calls["cuMemHostRegister"], 0);
  }
  // What is in place is neither packed nor unpacked.
  EXPECT_LT(launches[true], launches[false]);
}

}  // namespace

namespace quantised {
namespace {

std::string name_of(const testing::TestParamInfo<std::tuple<Case, Way>>& tested) {
  return std::get<0>(tested.param).name + "_" + std::get<1>(tested.param).name;
}

class QuantisedOverNccl : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(OnGpu, QuantisedOverNccl,
                         testing::Combine(testing::ValuesIn(cases()),
                                          testing::ValuesIn(gpu_ways())),
                         name_of);

TEST_P(QuantisedOverNccl, hold_what_the_oracle_says) {
  const auto& [c, way] = GetParam();
  Job job(c);
  const auto ended =
      run(c.ranks, [&, &way = way](RankEnds& ends) { run_as_rank(ends, job, way, 2, true); });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace quantised
}  // namespace reshard
