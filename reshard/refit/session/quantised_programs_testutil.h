// SPDX-License-Identifier: Apache-2.0
// Programs of all ranks for one move of a job with quantised sides, and the laws that they keep.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "reshard/program/check.h"
#include "reshard/refit/conversion/plan_route.h"
#include "reshard/refit/session/quantised_suite_testutil.h"

namespace reshard::quantised {

using conversion::plan_route;
using conversion::RoutePlan;

inline constexpr PairPath kWays[] = {PairPath::mapped, PairPath::get, PairPath::message};

/// The programs of all ranks for one move. `seed`: of the ways.
inline std::vector<Program> compile_all(const RoutePlan& plan, int ranks, Index staging,
                                        std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<std::pair<Rank, Rank>, PairPath> ways;
  CompileOptions common;
  common.staging_bytes = staging;
  common.unit_bytes = std::clamp<Index>(staging / 16, 4 << 10, 512 << 10);
  common.world = ranks;
  common.before = plan.from.conversion;
  common.after = plan.into.conversion;
  const auto only = random() % 4;  // 3: mixed
  for (int src = 0; src < ranks; ++src)
    for (int dst = 0; dst < ranks; ++dst) {
      const PairPath way = kWays[only < 3 ? only : random() % 3];
      ways[{Rank(src), Rank(dst)}] = way;
      common.reads |= way != PairPath::message;
      common.gets |= way == PairPath::get;
    }
  std::vector<Program> programs;
  for (int r = 0; r < ranks; ++r) {
    CompileOptions options = common;
    options.path_from = [&](Rank src) { return ways.at({src, Rank(r)}); };
    options.path_to = [&](Rank dst) { return ways.at({Rank(r), dst}); };
    auto program = compile_rank(plan.planner, plan.planner.rank_plan(Rank(r)), options);
    EXPECT_EQ(outcome(program), "");
    if (program) programs.push_back(*std::move(program));
  }
  return programs;
}

/// Each rank's program delivers all bytes of its targets, once.
inline void check_all(const std::vector<Program>& programs, const RoutePlan& plan, int threads) {
  for (const Program& program : programs) {
    const TargetBytes delivers =
        *delivered_bytes(plan.planner, {&program.rank, 1}, plan.into.conversion);
    ProgramExpectations expected;
    expected.delivers = &delivers;
    expected.threads = threads;
    EXPECT_EQ(outcome(check_program(program, expected)), "");
    Index bytes = 0;
    for (const auto& [target, ranges] : delivers)
      for (const Interval& range : ranges) bytes += range.size();
    EXPECT_EQ(program.delivered(), bytes) << program.rank.value();
  }
  EXPECT_EQ(outcome(check_programs(programs)), "");
}

}  // namespace reshard::quantised
