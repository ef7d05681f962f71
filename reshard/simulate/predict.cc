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
  const GroupCompiler group(planner, [&](Rank src, Rank dst) {
    return cluster.reads(src, dst) ? PairPath::mapped : PairPath::message;
  });
  for (Rank::rep r = 0; r < group.world(); ++r)
    programs.push_back(RESHARD_TRY(group.compile(Rank(r))));
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
