// SPDX-License-Identifier: Apache-2.0
// What a refit requires of every transport, as a suite that a backend's test program includes once
// and instantiates: RESHARD_TEST_REFITS(Name, under_test). Each backend runs every way with a
// third of the layouts; its name decides which. Ranks may be threads or processes: each has
// only its own memory, and looks at its own elements.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "reshard/base/combinations_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"

namespace reshard {

/// Ranks with memory of a GPU, and ranks without.
inline bool every_rank(Rank) { return true; }
inline bool odd_rank(Rank rank) { return rank.value() % 2 == 1; }
inline bool even_rank(Rank rank) { return rank.value() % 2 == 0; }

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
      {.name = "gpus", .takes = "direct", .gpu_source = every_rank, .gpu_target = every_rank},
      {.name = "gpus_messages",
       .path = RefitPath::message,
       .staging_bytes = kLeast,
       .takes = "message",
       .gpu_source = every_rank,
       .gpu_target = every_rank},
      {.name = "gpus_of_targets", .staging_bytes = kLeast, .gpu_target = every_rank},
      {.name = "gpus_of_some", .gpu_source = odd_rank, .gpu_target = even_rank},
  };
}

class RefitOverTransport : public testing::TestWithParam<
                               std::tuple<TransportUnderTest, std::tuple<RefitLayouts, RefitWay>>> {
};

TEST_P(RefitOverTransport, puts_every_element_in_place) {
  const auto& [transport, job] = GetParam();
  const auto& [layouts, way] = job;
  const Planner planner = planner_of(layouts);
  const auto ended = transport.run(layouts.ranks, [&](RankEnds& ends) {
    EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

/// Replicas that relay what they receive, on hosts of one rank or two.
struct RelayedLayouts {
  RefitLayouts layouts;
  int per_host = 1;
};

inline std::vector<RelayedLayouts> relayed_layouts() {
  return {
      {{"chain", wide_moe(), "megatron:tp=1", "vllm:tp=1,replicas=4,offset=1", 5}, 1},
      {{"hosts_of_two", wide_moe(), "megatron:tp=2,pp=2", "vllm:tp=2,replicas=3,offset=2", 8}, 2},
      {{"casts", wide_moe(), "megatron:tp=2,dtype=float32", "vllm:tp=1,replicas=3,offset=2", 5}, 1},
  };
}

class RelaysOverTransport
    : public testing::TestWithParam<
          std::tuple<TransportUnderTest, std::tuple<RelayedLayouts, RefitWay>>> {};

TEST_P(RelaysOverTransport, put_every_element_in_place) {
  const auto& [transport, job] = GetParam();
  const RelayedLayouts& relayed = std::get<0>(job);
  RefitWay way = std::get<1>(job);
  if (way.takes == "direct") way.takes = "";  // relayed bytes are in messages
  const Planner direct = planner_of(relayed.layouts);
  RelayOptions places;
  places.least_gain = 0;
  for (int r = 0; r < relayed.layouts.ranks; ++r)
    places.places.domain.push_back(r / relayed.per_host);
  places.places.nic = places.places.domain;
  const Planner planner =
      *Planner::make(direct.shared_source(), direct.shared_target(),
                     {{}, {}, std::make_shared<const RelayOptions>(std::move(places))});
  EXPECT_TRUE(planner.uses_relays());
  const auto ended = transport.run(relayed.layouts.ranks, [&](RankEnds& ends) {
    EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

inline std::string relays_case_name(
    const testing::TestParamInfo<RelaysOverTransport::ParamType>& info) {
  const auto& [relayed, way] = std::get<1>(info.param);
  return relayed.layouts.name + "_" + way.name;
}

inline std::string refit_case_name(
    const testing::TestParamInfo<RefitOverTransport::ParamType>& info) {
  const auto& [layouts, way] = std::get<1>(info.param);
  return layouts.name + "_" + way.name;
}

#define RESHARD_TEST_REFITS(Name, under_test)                                                    \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      Name, RefitOverTransport,                                                                  \
      testing::Combine(                                                                          \
          testing::Values(under_test),                                                           \
          testing::ValuesIn(combinations(refit_layouts(), refit_ways(), 3, first_of(#Name)))),   \
      refit_case_name);                                                                          \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      Name, RelaysOverTransport,                                                                 \
      testing::Combine(                                                                          \
          testing::Values(under_test),                                                           \
          testing::ValuesIn(combinations(relayed_layouts(), refit_ways(), 3, first_of(#Name)))), \
      relays_case_name)

}  // namespace reshard
