// SPDX-License-Identifier: Apache-2.0
// Refits between all of swap_layouts(), as a suite that a backend's test program includes once and
// instantiates: RESHARD_TEST_SWAPS(Name, under_test). Ranks may be threads or processes.
#pragma once

#include "reshard/megatron/swap_testutil.h"

namespace reshard::megatron {

class SwapOverTransport
    : public testing::TestWithParam<std::tuple<TransportUnderTest, SwapLayouts>> {};

TEST_P(SwapOverTransport, puts_every_value_in_place) {
  const auto& [transport, layouts] = GetParam();
  const auto ended = transport.run(
      layouts.ranks, [&](RankEnds& ends) { EXPECT_EQ(outcome(swap_as_rank(ends, layouts)), ""); });
  EXPECT_EQ(outcome(ended), "");
}

inline std::string swap_case_name(
    const testing::TestParamInfo<SwapOverTransport::ParamType>& info) {
  return std::get<1>(info.param).name;
}

#define RESHARD_TEST_SWAPS(Name, under_test)                                            \
  INSTANTIATE_TEST_SUITE_P(                                                             \
      Name, SwapOverTransport,                                                          \
      testing::Combine(testing::Values(under_test), testing::ValuesIn(swap_layouts())), \
      swap_case_name)

}  // namespace reshard::megatron
