// SPDX-License-Identifier: Apache-2.0
// What a refit requires of every transport, as a suite that a backend's test program includes once
// and instantiates: RESHARD_TEST_REFITS(Name, under_test). Ranks may be threads or processes: each
// has only its own memory, and looks at its own elements.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "reshard/exec/refit_rank_testutil.h"

namespace reshard {

inline std::vector<RefitLayouts> refit_layouts() {
  return {
      {"collocated", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4", 4},
      {"disjoint_halves", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=4", 8},
      {"overlapping", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=3", 7},
      {"idle_ranks", tiny_dense(), "megatron:tp=2,offset=1", "vllm:tp=2,offset=4", 8},
      {"few_to_many", wide_moe(), "hf:shards=1", "vllm:tp=4,offset=1", 5},
      {"many_to_few", wide_moe(), "megatron:tp=2,pp=4,ep=2,etp=1", "hf:shards=1", 8},
      {"one_rank", tiny_moe(), "hf:shards=1", "vllm:tp=1", 1},
      {"mixers", tiny_qwen3_next(), "megatron:tp=2", "vllm:tp=4,offset=1", 5},
      {"latent", tiny_deepseek(), "megatron:tp=2,pp=2", "vllm:tp=2,offset=4", 6},
  };
}

inline std::vector<RefitWay> refit_ways() {
  constexpr Index kLeast = Index{32} << 10;
  return {
      {"automatic"},
      {"shared_memory", Limit::none, RefitPath::automatic, Index{64} << 20, 1024, "", true},
      {"by_get", Limit::no_address},
      {"messages", Limit::none, RefitPath::message, Index{64} << 20, Index{64} << 10, "message"},
      {"least_staging", Limit::no_direct, RefitPath::automatic, kLeast, Index{64} << 10, "message"},
      {"in_place", Limit::none, RefitPath::message, kLeast, 64, "message"},
      {"two_hosts", Limit::none, RefitPath::automatic, kLeast, 1024, "", true, {}, 2},
      {"nothing_opens", Limit::cannot_open, RefitPath::automatic, kLeast, 1024, ""},
  };
}

class RefitOverTransport
    : public testing::TestWithParam<std::tuple<TransportUnderTest, RefitLayouts, RefitWay>> {};

TEST_P(RefitOverTransport, puts_every_element_in_place) {
  const auto& [transport, layouts, way] = GetParam();
  const Planner planner = planner_of(layouts);
  const auto ended = transport.run(layouts.ranks, [&](RankEnds& ends) {
    EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

inline std::string refit_case_name(
    const testing::TestParamInfo<RefitOverTransport::ParamType>& info) {
  return std::get<1>(info.param).name + "_" + std::get<2>(info.param).name;
}

#define RESHARD_TEST_REFITS(Name, under_test)                                           \
  INSTANTIATE_TEST_SUITE_P(                                                             \
      Name, RefitOverTransport,                                                         \
      testing::Combine(testing::Values(under_test), testing::ValuesIn(refit_layouts()), \
                       testing::ValuesIn(refit_ways())),                                \
      refit_case_name)

}  // namespace reshard
