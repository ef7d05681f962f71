// SPDX-License-Identifier: Apache-2.0
// Plans one refit again and again in one process and prints the seconds of each phase.
//
//   plan_bench --config FILE --from LAYOUT --to LAYOUT [--layers N] [--repeat N]
//              [--side both|source|target] [--whole THREADS]
//
// The time of a part is that of the slowest of three ranks: the first, the middle and the last of
// its side. --repeat 1 skips the warm-up, so that peak_rss_bytes is that of a process that planned
// once. --whole also plans and adds up every rank's deliveries in each repetition.
#include <algorithm>
#include <map>

#include "bench/common/case.h"
#include "bench/common/turns.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/canonical.h"
#include "reshard/plan/planner.h"
#include "reshard/plan/summary.h"

namespace reshard::bench {
namespace {

struct Request {
  Model model;
  std::string from, to, side;
  Index repeat = 10, whole_threads = 0;
};

/// Seconds of each phase, one entry for each repetition.
using Phases = std::map<std::string, std::vector<double>>;

template <class F>
auto timed(Phases& phases, const std::string& name, F&& f) {
  const Stopwatch watch;
  auto result = f();
  phases[name].push_back(watch.seconds());
  return result;
}

struct PartSize {
  double seconds = 0;
  Index transfers = 0;
};

PartSize slowest_part(const Planner& planner, const ModelLayout& side) {
  const std::vector<Rank> ranks = side.ranks().members();
  PartSize slowest;
  for (const Rank r : {ranks.front(), ranks[ranks.size() / 2], ranks.back()}) {
    const Stopwatch watch;
    const RankPlan part = planner.rank_plan(r);
    const double seconds = watch.seconds();
    const auto transfers =
        static_cast<Index>(part.sends.size() + part.recvs.size() + part.locals.size());
    if (seconds >= slowest.seconds) slowest = {seconds, transfers};
  }
  return slowest;
}

void add_summary(JsonLine& line, const PlanSummary& sum, Index source_ranks) {
  line.add("ranks", sum.ranks);
  line.add("source_ranks", source_ranks);
  line.add("bytes_wire", sum.bytes_wire);
  line.add("bytes_local", sum.bytes_local);
  line.add("transfers", sum.transfers);
  line.add("max_egress_bytes", sum.max_egress_bytes);
  line.add("optimal_max_egress_bytes", sum.optimal_max_egress_bytes);
}

/// Plans once, from the config on. Adds the summary to `line` in the `last` repetition.
Result<> plan_once(Request& request, Phases& phases, JsonLine& line, bool last) {
  Model& model = request.model;
  auto tensors = timed(phases, "model", [&] { return canonical_tensors(*model.config); });
  model.tensors = std::make_shared<const ModelSpec>(RESHARD_TRY(std::move(tensors)));
  const auto source =
      RESHARD_TRY(timed(phases, "source_layout", [&] { return make_layout(request.from, model); }));
  const auto target =
      RESHARD_TRY(timed(phases, "target_layout", [&] { return make_layout(request.to, model); }));
  const Planner planner =
      RESHARD_TRY(timed(phases, "planner", [&] { return Planner::make(source, target); }));
  for (const auto& [side, layout] : {std::pair("source", &source), std::pair("target", &target)}) {
    if (request.side != side && request.side != "both") continue;
    const PartSize part = slowest_part(planner, **layout);
    phases[std::string(side) + "_part"].push_back(part.seconds);
    if (last) line.add(std::string(side) + "_part_transfers", part.transfers);
  }
  if (request.whole_threads > 0) {
    const PlanSummary sum = timed(phases, "whole", [&] {
      return summarise(planner, static_cast<int>(request.whole_threads));
    });
    if (last) add_summary(line, sum, source->ranks().size());
  }
  return {};
}

Result<> run(Arguments& arguments) {
  Request request;
  request.model = RESHARD_TRY(model_of(arguments));
  if (!request.model.config)
    return fail(Code::invalid_argument,
                "--config: give a config or an example; " + request.model.no_config);
  request.from = arguments.text("from");
  request.to = arguments.text("to");
  request.side = arguments.text("side", "both");
  request.repeat = RESHARD_TRY(arguments.integer("repeat", 10));
  request.whole_threads = RESHARD_TRY(arguments.integer("whole", 0));
  RESHARD_TRY(arguments.unused());

  JsonLine line;
  Phases warm_up, phases;
  if (request.repeat > 1) RESHARD_TRY(plan_once(request, warm_up, line, false));
  for (Index i = 1; i <= request.repeat; ++i)
    RESHARD_TRY(plan_once(request, phases, line, i == request.repeat));
  for (const auto& [name, seconds] : phases) line.add("seconds_" + name, seconds);
  line.add("peak_rss_bytes", peak_rss_bytes());
  line.print();
  return {};
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
