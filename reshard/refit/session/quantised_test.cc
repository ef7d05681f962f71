// SPDX-License-Identifier: Apache-2.0
// Protects: a session's quantised target holds, byte for byte, the result of quantising its local
// tensors (or the canonical ones, if the block grid is theirs), whichever side converts, even if
// shards cut blocks; and a quantised source delivers its values.
#include <gtest/gtest.h>

#include "reshard/refit/conversion/routes.h"
#include "reshard/refit/session/quantised_suite_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard::quantised {
namespace {

std::string name_of(const testing::TestParamInfo<std::tuple<Case, Way>>& tested) {
  return std::get<0>(tested.param).name + "_" + std::get<1>(tested.param).name;
}

class QuantisedSessions : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantisedSessions, testing::ValuesIn(half_of(cases(), ways(), 0)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(OnGpu, QuantisedSessions,
                         testing::ValuesIn(half_of(cases(), gpu_ways(), 0)), name_of);

TEST_P(QuantisedSessions, hold_what_the_oracle_says) {
  const auto& [c, way] = GetParam();
  Job job(c);
  const auto ended = run_group_as_threads<InprocGroup>(
      c.ranks, [&, &way = way](RankEnds& ends) { run_as_rank(ends, job, way, 3, true); });
  EXPECT_EQ(outcome(ended), "");
}

class QuantisedProcesses : public testing::TestWithParam<std::tuple<Case, Way>> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantisedProcesses,
                         testing::ValuesIn(half_of(few_cases(), ways(), 0)), name_of);

INSTANTIATE_TEST_SUITE_P(OnGpu, QuantisedProcesses,
                         testing::ValuesIn(half_of(few_cases(), gpu_ways(), 0)), name_of);

TEST_P(QuantisedProcesses, hold_what_the_oracle_says) {
  const auto& [c, way] = GetParam();
  Job job(c);
  const auto ended = shm_processes("mapped,readv,ring")(
      c.ranks, [&, &way = way](RankEnds& ends) { run_as_rank(ends, job, way, 2, false); });
  EXPECT_EQ(outcome(ended), "");
}

Routes routes_of(const std::string& name, ConversionSide convert) {
  for (const Case& c : cases()) {
    if (c.name != name) continue;
    const Job job(c);
    return *find_routes(job.source.side(), job.target.side(),
                        std::vector<bool>(static_cast<std::size_t>(job.model->size()), true),
                        convert);
  }
  return {};
}

ConversionCounts counts_of(const std::string& name, ConversionSide convert) {
  return routes_of(name, convert).counts;
}

TEST(SessionRoutes, fall_back_where_a_block_is_cut) {
  const auto even = counts_of("mxfp8", ConversionSide::sender);
  EXPECT_GT(even.at_sender, 0);
  const auto cut = counts_of("mxfp8_cut", ConversionSide::sender);
  EXPECT_GT(cut.at_receiver, 0);
  EXPECT_GT(cut.fell_back, 0);
  EXPECT_EQ(counts_of("mxfp8_cut", ConversionSide::receiver).at_sender, 0);
  // Tiles are filled when all of the local tensor is there.
  const auto tiles = counts_of("mxfp8_swizzled", ConversionSide::sender);
  EXPECT_EQ(tiles.at_sender, 0);
  EXPECT_EQ(tiles.fell_back, tiles.at_receiver);
}

TEST(QuantisedPrepare, names_the_rank_whose_format_differs) {
  // Of each pair the local tensors have the same names, shapes and dtypes.
  for (const auto& [ours, theirs] :
       {std::pair("mxfp8", "mxfp8_floor"), std::pair("nvfp4", "nvfp4_divisor")}) {
    Case c = cases().front(), other = c;
    c.to_format = ours;
    other.to_format = theirs;
    Job job(c), wrong(other);
    job.fill(1);
    const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&](RankEnds& ends) {
      const Rank me = ends.rank();
      const Job& mine_of = me == Rank(2) ? wrong : job;
      const RankBuffers from = mine(*mine_of.source.stored, me),
                        to = mine(*mine_of.target.stored, me);
      SessionSide source = mine_of.source.side(), target = mine_of.target.side();
      source.buffers = from.ranks().empty() ? nullptr : &from;
      target.buffers = to.ranks().empty() ? nullptr : &to;
      const auto made = Session::prepare(*ends.transport, *ends.control, source, target, {});
      ASSERT_FALSE(made) << ours;
      EXPECT_NE(made.error().message.find("rank 2's target layout differs from rank 0's"),
                std::string::npos)
          << made.error().message;
    });
    EXPECT_EQ(outcome(ended), "");
  }
}

TEST(SessionRoutes, fetch_whole_blocks_unless_that_moves_more_bytes) {
  const auto uses = [](const std::string& name, ConversionSide convert, Route route) {
    const Routes routes = routes_of(name, convert);
    return std::ranges::find(routes.of, route) != routes.of.end();
  };
  for (const ConversionSide convert : {ConversionSide::sender, ConversionSide::receiver}) {
    EXPECT_TRUE(uses("mxfp8_both_cut", convert, Route::quantise_halo));
    EXPECT_FALSE(uses("mxfp8_both_cut", convert, Route::quantise_between));
    EXPECT_TRUE(uses("nvfp4_tensor_grid", convert, Route::quantise_between));
    EXPECT_NE(routes_of("fp8_block_to_mxfp8_cut", convert).halo, nullptr);
  }
}

TEST(SessionRoutes, move_equal_formats_as_they_are) {
  for (const char* name : {"fp8_block_as_it_is", "mxfp8_as_it_is"}) {
    const auto counts = counts_of(name, ConversionSide::receiver);
    EXPECT_GT(counts.direct, 0);
    EXPECT_EQ(counts.at_sender + counts.at_receiver + counts.between, 0) << name;
  }
}

}  // namespace
}  // namespace reshard::quantised
