// SPDX-License-Identifier: Apache-2.0
// What a refit requires of every transport, as a suite that a backend's test program includes once
// and instantiates: RESHARD_TEST_REFITS(Name, under_test). Ranks may be threads or processes: each
// has only its own memory, and looks at its own elements.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/exec/value_oracle_testutil.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// Two layouts of one model, and how many ranks run the refit.
struct RefitLayouts {
  std::string name;
  ModelConfig config;
  std::string from, to;
  int ranks = 1;
};
inline std::ostream& operator<<(std::ostream& out, const RefitLayouts& l) { return out << l.name; }

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

/// One way to run it.
struct RefitWay {
  std::string name;
  Limit limit = Limit::none;
  RefitPath path = RefitPath::automatic;
  Index staging_bytes = Index{64} << 20, in_place_bytes = Index{64} << 10;
  std::string_view takes = "";  ///< the path that must be taken; "": whichever.
  bool shared = false;          ///< buffers that other processes can map.
  std::function<void()> before_run = {};
  int hosts = 1;  ///< of the group; memory of other hosts cannot be opened.
};
inline std::ostream& operator<<(std::ostream& out, const RefitWay& w) { return out << w.name; }

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

/// One rank's own memory, and its transport with limited capabilities.
struct RefitRank {
  RankBuffers source, target;
  LimitedTransport transport;

  /// Takes the transport of `ends`.
  RefitRank(RankEnds& ends, const Planner& planner, const RefitWay& way)
      : source(mine(planner.shared_source(), ends.rank(), way)),
        target(mine(planner.shared_target(), ends.rank(), way)),
        transport(std::move(ends.transport), way.limit, way.hosts) {}

  /// Collective. A refit of this memory, which has to outlive it.
  Result<RankRefit> prepare(const Planner& planner, ControlPlane& control, const RefitWay& way) {
    RankRefitOptions options;
    options.path = way.path;
    options.staging_bytes = way.staging_bytes;
    options.in_place_bytes = way.in_place_bytes;
    return RankRefit::prepare(planner, source.ranks().empty() ? nullptr : &source,
                              target.ranks().empty() ? nullptr : &target, transport, control,
                              options);
  }

 private:
  static RankBuffers mine(const std::shared_ptr<const ModelLayout>& layout, Rank me,
                          const RefitWay& way) {
    const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
    return *RankBuffers::allocate(layout, ranks, {.shared = way.shared});
  }
};

/// One rank: a refit with its own memory only, twice, each time into zeros. Expects every element
/// in place, the expected path, and staging below its cap.
inline Result<> refit_as_rank(RankEnds& ends, const Planner& planner, const RefitWay& way) {
  const Rank me = ends.rank();
  RefitRank mine(ends, planner, way);
  const RankBuffers& target = mine.target;
  fill_values(mine.source);
  RankRefit refit = RESHARD_TRY(mine.prepare(planner, *ends.control, way));
  if (!way.takes.empty()) {
    EXPECT_EQ(refit.path(), way.takes) << refit.reason();
  }
  EXPECT_LE(refit.staging_bytes(), way.staging_bytes);
  for (int i = 0; i < 2; ++i) {
    for (const auto memory : target.memory(me)) std::memset(memory.data(), 0, memory.size());
    if (way.before_run) way.before_run();
    RESHARD_TRY(refit.run());
    EXPECT_EQ(count_wrong_values(planner, target), 0) << "rank " << me.value() << ", run " << i;
  }
  RESHARD_TRY(ends.control->quiesce(patient()));
  return {};
}

/// The planner of two layouts given as text.
inline Planner planner_of(const RefitLayouts& layouts) {
  const auto model = model_of(layouts.config);
  return *Planner::make(layout_of(layouts.from, model, layouts.config),
                        layout_of(layouts.to, model, layouts.config));
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
