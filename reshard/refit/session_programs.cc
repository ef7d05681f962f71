// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session_programs.h"

#include "reshard/refit/conversion/plan_moves.h"

namespace reshard {

Result<std::vector<SessionProgram>> session_programs(const SessionSide& source,
                                                     const SessionSide& target, Rank rank,
                                                     const WayBetween& way,
                                                     const SessionProgramOptions& options) {
  const conversion::MovePlans plans =
      RESHARD_TRY(conversion::plan_moves(source, target,
                                         {.ignore = options.ignore,
                                          .only = options.only,
                                          .convert = options.convert,
                                          .relays = options.relays,
                                          .staging_bytes = options.staging_bytes}));
  CompileOptions compile;
  compile.staging_bytes = plans.message_bytes;
  compile.in_place_bytes = options.in_place_bytes;
  compile.unit_bytes = plans.unit_bytes;
  for (const auto& side : {source.values(), target.values()})
    if (const auto ranks = side->ranks().members(); !ranks.empty())
      compile.world = std::max(compile.world, ranks.back().value() + 1);
  std::vector<SessionProgram> out;
  for (const conversion::RoutePlan& move : plans.moves) {
    compile.before = move.from.conversion;
    compile.after = move.into.conversion;
    const GroupCompiler group(move.planner, way, compile);
    out.push_back({move.route, RESHARD_TRY(group.compile(rank)),
                   memory_of(move.from.conversion, false, move.planner.shared_source()),
                   memory_of(move.into.conversion, true, move.planner.shared_target())});
  }
  return out;
}

}  // namespace reshard
