// SPDX-License-Identifier: Apache-2.0
// Protects: programs of conversions, with a random way between each two ranks and any staging, keep
// all laws of programs, and give the bytes that the oracle says whatever order their waits allow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/slow_executor_testutil.h"
#include "reshard/refit/session/quantised_programs_testutil.h"

namespace reshard::quantised {
namespace {

class QuantisedPrograms : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantisedPrograms, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

/// A copy of the target: its plain tensors have what the oracle says, the others are zeros.
RankBuffers target_of(const OracleSide& oracle) {
  RankBuffers out = allocate_all(oracle.stored->shared_layout());
  if (oracle.quantised == nullptr) return out;
  for (const Rank r : out.ranks())
    for (const SlotId plain : oracle.quantised->plain)
      if (plain.value() >= 0 && out.at(r, plain) != nullptr)
        std::memcpy(out.at(r, plain), oracle.stored->at(r, plain),
                    static_cast<std::size_t>(out.bytes(r, plain)));
  return out;
}

TEST_P(QuantisedPrograms, keep_the_laws_and_give_what_the_oracle_says) {
  const Case& c = GetParam();
  Job job(c);
  job.fill(1);
  const SessionSide from = job.source.side(), into = job.target.side();
  const std::vector<bool> all(static_cast<std::size_t>(job.model->size()), true);
  std::uint64_t seed = 1;
  for (const ConversionSide convert : {ConversionSide::receiver, ConversionSide::sender})
    for (const Index staging : {Index{64} << 10, Index{64} << 20}) {
      const Routes routes = *find_routes(from, into, all, convert);
      const RankBuffers target = target_of(job.target);
      for (int r = 0; r <= static_cast<int>(Route::requantise); ++r) {
        const auto route = static_cast<Route>(r);
        std::vector<bool> tensors;
        for (const Route of : routes.of) tensors.push_back(of == route);
        if (std::ranges::find(tensors, true) == tensors.end()) continue;
        if (route == Route::plain && job.target.quantised != nullptr) continue;
        auto plans = *plan_route(route, tensors, from, into, routes);
        std::optional<RankBuffers> between;
        for (RoutePlan& plan : plans) {
          const auto programs = compile_all(plan, c.ranks, staging, ++seed);
          check_all(programs, plan, 2);
          const OracleSide& source = job.source;
          const RankBuffers& read = plan.from.between != nullptr ? *between
                                    : plan.from.values           ? *source.values
                                                                 : *source.stored;
          if (plan.into.between != nullptr) between.emplace(allocate_all(routes.between->stored));
          const RankBuffers& written = plan.into.between != nullptr ? *between : target;
          const auto order = seed % 2 == 0 ? std::optional<std::uint64_t>() : seed;
          ASSERT_TRUE(run_slowly(programs, read, written, order));
        }
      }
      for (const Rank rank : target.ranks())
        EXPECT_EQ(different_bytes(target, *job.target.stored, rank), 0) << rank.value();
    }
}

}  // namespace
}  // namespace reshard::quantised
