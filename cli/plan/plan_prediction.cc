// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/plan_prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/measure.h"
#include "cli/table.h"
#include "reshard/base/number_text.h"
#include "reshard/io/cluster_file.h"
#include "reshard/io/json/plan_json.h"

namespace reshard::cli {

Result<std::optional<PlanPrediction>> PlanPrediction::of(const PlanArguments& a,
                                                         const Planner& planner,
                                                         const PlanSummary* plan) {
  if (a.cluster.empty()) return std::optional<PlanPrediction>();
  ClusterSpec cluster = RESHARD_TRY(read_cluster(a.cluster));
  PlanSummary mine;
  if (plan == nullptr) mine = summarise(planner, num_threads(a.threads), true);
  const Stopwatch watch;
  auto prediction = RESHARD_TRY(prediction_of(cluster, planner, plan ? *plan : mine));
  const Index bytes = (plan ? *plan : mine).bytes_total;
  return PlanPrediction(std::move(cluster), std::move(prediction), bytes, watch.seconds());
}

const RankSeconds& PlanPrediction::slowest() const {
  return *std::ranges::max_element(prediction_.simulation.ranks, {}, &RankSeconds::moved);
}

void PlanPrediction::add_to(Json::Object& object) const {
  const Simulation& s = prediction_.simulation;
  Json::Array first, moved;
  for (const RankSeconds& rank : s.ranks) {
    first.push_back(json_number(rank.first));
    moved.push_back(json_number(rank.moved));
  }
  object.push_back({"predicted_seconds", json_number(s.predicted_seconds)});
  object.push_back({"bound_seconds", json_number(s.bound_seconds)});
  object.push_back({"bound_by", Json(s.bound_by)});
  Json::Object more{{"cluster", Json(cluster_.name)},
                    {"of", Json(std::string(prediction_.of_programs ? "programs" : "traffic"))},
                    {"has_rates", Json(has_rates())},
                    {"busiest_link", Json(s.busiest_link)},
                    {"busiest_link_bytes", json_number(s.link_bytes)},
                    {"busiest_link_use", json_number(s.link_use)},
                    {"simulation_seconds", json_number(seconds_)}};
  if (!s.ranks.empty()) more.push_back({"slowest_rank", Json(Index{slowest().rank.value()})});
  more.push_back({"first_seconds", Json(std::move(first))});
  more.push_back({"moved_seconds", Json(std::move(moved))});
  object.push_back({"simulation", Json(std::move(more))});
}

std::string PlanPrediction::phases(const RankSeconds& rank) const {
  return fmt::format("first bytes after {}, moves for {}, waits for {}", human_seconds(rank.first),
                     human_seconds(rank.moved - rank.first),
                     human_seconds(prediction_.simulation.predicted_seconds - rank.moved));
}

std::string PlanPrediction::text(std::optional<Rank> rank) const {
  const Simulation& s = prediction_.simulation;
  const Style style = Style::of_stdout();
  Table table({{""}, {"", Table::Align::right}, {""}});
  if (!has_rates()) {
    table.add({"predicted", "unknown",
               "the cluster gives no rate for what moves these bytes, such as "
               "copies.bytes_per_second or nics.bytes_per_second"});
    return style.title("on " + cluster_.name) + "\n" + table.text(style);
  }
  table.add({"predicted", human_seconds(s.predicted_seconds), "until every rank is done"});
  table.add({"bound", human_seconds(s.bound_seconds), s.bound_by});
  if (!s.busiest_link.empty())
    table.add({"busiest link", human_bytes(static_cast<Index>(s.link_bytes)),
               fmt::format("{}, {:.0f} % used", s.busiest_link, 100 * s.link_use)});
  const auto add = [&](const char* what, const RankSeconds& r) {
    table.add({what, fmt::format("rank {}", r.rank.value()), phases(r)});
  };
  if (!s.ranks.empty()) add("slowest", slowest());
  if (rank && rank->index() < s.ranks.size()) add("this rank", s.ranks[rank->index()]);
  return style.title("on " + cluster_.name) + "\n" + table.text(style) +
         style.quiet(fmt::format("simulated by {} in {}\n",
                                 prediction_.of_programs ? "programs" : "traffic",
                                 human_seconds(seconds_)));
}

}  // namespace reshard::cli
