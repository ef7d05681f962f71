// SPDX-License-Identifier: Apache-2.0
// Protects: a refit between ranks with GPUs puts every element in place over NVSHMEM, whether PEs
// map each other's memory or a network is between them; and one that quantises holds what the
// oracle says. Ranks are threads that share the GPU under test, over the model of NVSHMEM.
#include <gtest/gtest.h>

#include <numeric>

#include "reshard/exec/rank_refit_testutil.h"
#include "reshard/gpu_transport/nvshmem/model_group_testutil.h"
#include "reshard/refit/session/quantised_suite_testutil.h"

namespace reshard {
namespace {

using nvshmem::NvshmemModel;

/// Small slots, so that most messages have several segments.
constexpr std::size_t kStaging = std::size_t{1} << 20;

Result<> run_over(NvshmemModel::Options options, int n, const RankBody& body) {
  options.pes = n;
  nvshmem::ModelGroup group(options, kStaging);
  std::vector<int> pes(static_cast<std::size_t>(n));
  std::iota(pes.begin(), pes.end(), 0);
  const Result<> result = group.run(pes, body);
  EXPECT_EQ(group.model().num_unmet_waits(), 0) << "a stream would wait for a peer";
  return result;
}
Result<> run_mapped(int n, const RankBody& body) {
  return run_over({.order = NvshmemModel::Order::stream}, n, body);
}
Result<> run_network(int n, const RankBody& body) { return run_over({.mapped = false}, n, body); }

const TransportUnderTest kMapped{"nvshmem", run_mapped};
const TransportUnderTest kNetwork{"nvshmem", run_network};
RESHARD_TEST_REFITS(NvshmemMapped, kMapped);
RESHARD_TEST_REFITS(NvshmemNetwork, kNetwork);

TEST(RefitsOverNvshmem, put_from_the_memory_of_the_gpu_in_place_or_staged_there) {
  const RefitLayouts layouts = refit_layouts().front();
  const Planner planner = planner_of(layouts);
  for (const Index in_place : {Index{64}, Index{1} << 40}) {
    const RefitWay way{.name = "gpus",
                       .path = RefitPath::message,
                       .in_place_bytes = in_place,
                       .takes = "message",
                       .gpu_source = every_rank,
                       .gpu_target = every_rank};
    nvshmem::ModelGroup group({.pes = layouts.ranks, .order = NvshmemModel::Order::stream},
                              kStaging);
    std::vector<int> pes(static_cast<std::size_t>(layouts.ranks));
    std::iota(pes.begin(), pes.end(), 0);
    const auto body = [&](RankEnds& ends) {
      EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
    };
    EXPECT_EQ(outcome(group.run(pes, body)), "");
    EXPECT_GT(group.model().num_direct_puts(), 0);
  }
}

}  // namespace

namespace quantised {
namespace {

class QuantisedOverNvshmem : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(OnGpu, QuantisedOverNvshmem,
                         testing::ValuesIn(half_of(cases(), gpu_ways(), 0)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param).name + "_" +
                                  std::get<1>(tested.param).name;
                         });

TEST_P(QuantisedOverNvshmem, hold_what_the_oracle_says) {
  const auto& [c, way] = GetParam();
  Job job(c);
  const auto body = [&, &way = way](RankEnds& ends) { run_as_rank(ends, job, way, 2, true); };
  EXPECT_EQ(outcome(run_mapped(c.ranks, body)), "");
}

}  // namespace
}  // namespace quantised
}  // namespace reshard
