// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/predict.h"

#include "reshard/program/compile.h"

namespace reshard {

Result<std::vector<Program>> compile_for(const ClusterSpec& cluster, const Planner& planner) {
  const std::vector<Rank> ranks = planner.ranks().members();
  std::vector<Program> programs;
  if (ranks.empty()) return programs;
  if (cluster.one_process) {
    programs.push_back(RESHARD_TRY(compile_in_process(planner, ranks)));
    return programs;
  }
  CompileOptions options;
  options.world = ranks.back().value() + 1;
  std::vector<RankPlan> plans;
  for (Rank::rep r = 0; r < options.world; ++r) {
    plans.push_back(planner.rank_plan(Rank(r)));
    for (const Transfer& t : plans.back().recvs) options.reads |= cluster.reads(t.src, t.dst);
  }
  for (const RankPlan& plan : plans) {
    const auto way = [&](Rank from, Rank to) {
      return cluster.reads(from, to) ? PairWay::mapped : PairWay::message;
    };
    options.way_from = [&](Rank src) { return way(src, plan.rank); };
    options.way_to = [&](Rank dst) { return way(plan.rank, dst); };
    programs.push_back(RESHARD_TRY(compile_rank(planner, plan, options)));
  }
  return programs;
}

Result<Prediction> prediction_of(const ClusterSpec& cluster, const Planner& planner,
                                 const PlanSummary& plan) {
  const auto world = static_cast<Index>(plan.egress.size());
  const Index parts = (plan.bytes_total >> 20) + plan.transfers;
  if (world > kMaxProgramRanks || parts > kMaxProgramParts)
    return Prediction{RESHARD_TRY(simulate_traffic(cluster, traffic_of(plan, cluster))), false};
  RESHARD_TRY(check_places(cluster, world));  // before the work of compiling
  const std::vector<Program> programs = RESHARD_TRY(compile_for(cluster, planner));
  return Prediction{RESHARD_TRY(simulate_programs(cluster, programs)), true};
}

}  // namespace reshard
