// SPDX-License-Identifier: Apache-2.0
// Protects: a refit between ranks with GPUs puts every element in place over NCCL, from and to
// tensors in place and over staging in the memory of the GPUs; and one that quantises holds what
// the oracle says. A copy service moves what ranks submit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/exec/rank_refit_testutil.h"
#include "reshard/gpu_transport/nccl/nccl_group_testutil.h"
#include "reshard/megatron/copy_service.h"
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
  std::map<bool, std::atomic<Index>> staging;
  for (const bool in_place : {false, true}) {
    cuda::emulated_gpu().reset();
    const RefitWay way{.name = "gpus",
                       .path = RefitPath::message,
                       .in_place_bytes = in_place ? Index{64} : Index{1} << 40,
                       .gpu_source = every_rank,
                       .gpu_target = every_rank};
    std::atomic<Index>& most = staging[in_place];
    const auto ended = run(layouts.ranks, [&](RankEnds& ends) {
      RefitRank mine(ends, planner, way);
      fill_values(mine.source.host);
      ASSERT_EQ(outcome(mine.source.write()), "");
      auto refit = mine.prepare(planner, *ends.control, way);
      ASSERT_TRUE(refit) << outcome(refit);
      EXPECT_EQ(outcome(refit->run()), "");
      ASSERT_EQ(outcome(mine.target.read()), "");
      EXPECT_EQ(count_wrong_values(planner, mine.target.host), 0);
      most = std::max<Index>(most, refit->staging_bytes());
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
    // No staging of this host's memory: the transports have the only pinned memory.
    EXPECT_EQ(cuda::emulated_gpu().calls["cuMemHostRegister"], 0);
    EXPECT_EQ(cuda::emulated_gpu().calls["cuMemHostAlloc"], layouts.ranks);
  }
  EXPECT_LT(staging[true], staging[false] / 10);
}

TEST(CopyServiceOverNccl, moves_tensors_of_many_sizes_between_all_ranks) {
  constexpr int kRanks = 5;
  const auto ended = run(kRanks, [&](RankEnds& ends) {
    RankRefitOptions options;
    options.staging_bytes = Index{64} << 10;
    megatron::TransportCopyService service(*ends.transport, *ends.control, 60, options);
    // Rank a sends 100 (a + 1) (b + 1)^4 bytes to rank b.
    const auto bytes_between = [](int from, int to) {
      return std::size_t{100} *
             static_cast<std::size_t>((from + 1) * (to + 1) * (to + 1) * (to + 1) * (to + 1));
    };
    const int me = ends.rank().value();
    std::vector<Bytes> sent(kRanks), received(kRanks);
    for (int r = 0; r < kRanks; ++r) {
      if (r == me) continue;
      const auto i = static_cast<std::size_t>(r);
      sent[i] = pattern(Rank{me}, Rank{r}, MessageId{0}, bytes_between(me, r));
      received[i].resize(bytes_between(r, me));
      const auto view = [](Bytes& b) {
        return *megatron::tensor_view(b, DType::u8, {static_cast<Index>(b.size())});
      };
      EXPECT_EQ(outcome(service.submit_send(view(sent[i]), Rank{r})), "");
      EXPECT_EQ(outcome(service.submit_recv(view(received[i]), Rank{r})), "");
    }
    EXPECT_EQ(outcome(service.run()), "");
    for (int r = 0; r < kRanks; ++r) {
      if (r == me) continue;
      EXPECT_EQ(received[static_cast<std::size_t>(r)],
                pattern(Rank{r}, Rank{me}, MessageId{0}, bytes_between(r, me)));
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace

namespace quantised {
namespace {

std::string name_of(const testing::TestParamInfo<std::tuple<Case, Way>>& tested) {
  return std::get<0>(tested.param).name + "_" + std::get<1>(tested.param).name;
}

class QuantisedOverNccl : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(OnGpu, QuantisedOverNccl,
                         testing::ValuesIn(half_of(cases(), gpu_ways(), 1)), name_of);

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
