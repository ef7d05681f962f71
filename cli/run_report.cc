// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cli/measure.h"
#include "cli/run_job.h"
#include "cli/text.h"

namespace reshard::cli {
namespace {

void add_processes(Json::Object& object, const RunJob& job, const Outcome& o) {
  const ProcessFigures& p = *o.processes;
  object.push_back({"transport", Json(job.arguments.transport)});
  object.push_back({"path", Json(p.path)});
  object.push_back({"path_reason", Json(p.reason)});
  object.push_back({"processes", Json(Index{p.processes})});
  object.push_back({"refit_messages", Json(p.messages)});
  object.push_back({"staging_bytes", Json(p.staging_bytes)});
  object.push_back({"most_peak_rss_bytes", Json(p.peak_rss_bytes)});
  object.push_back({"phases", Json(Json::Object{{"join", json_number(p.join)},
                                                {"fill", json_number(p.fill)},
                                                {"prepare", json_number(p.prepare)},
                                                {"wait", json_number(p.wait)},
                                                {"move", json_number(p.move)},
                                                {"finish", json_number(p.finish)},
                                                {"verify", json_number(o.verify_seconds)}})});
}

std::string runs_table(const RefitRuns& runs, const Style& style) {
  Table table({{"run", Table::Align::right},
               {"seconds", Table::Align::right},
               {"rate", Table::Align::right}});
  for (std::size_t i = 0; i < runs.seconds.size(); ++i)
    table.add({fmt::format("{}", i + 1), human_seconds(runs.seconds[i]),
               rate(runs.bytes, runs.seconds[i])});
  return table.text(style);
}

std::string copies_text(const RefitRuns& runs) {
  return fmt::format("{} copies of {} on average", grouped(runs.copies),
                     human_bytes(runs.bytes / std::max<Index>(runs.copies, 1)));
}

std::string best_text(const RefitRuns& runs) {
  const double percent =
      100 * runs.bytes_per_second() / std::max(runs.plain_bytes_per_second(), 1.0);
  return fmt::format("  best run {}, {:.0f} % of a plain copy of the same bytes ({}); {}\n",
                     rate(runs.bytes, runs.best_seconds()), percent,
                     rate(runs.bytes, runs.plain_seconds), copies_text(runs));
}

std::string best_text(const RunJob& job, const RefitRuns& runs, const ProcessFigures& p) {
  const std::string messages =
      p.messages > 0 ? fmt::format("; {} in all", plural(p.messages, "message")) : "";
  const std::string reason =
      p.reason.empty() ? "" : fmt::format("  no direct path: {}\n", p.reason);
  return fmt::format("  best run {} between {} over {}, {} path; {}{}\n",
                     rate(runs.bytes, runs.best_seconds()), plural(p.processes, "rank"),
                     job.arguments.transport, p.path, copies_text(runs), messages) +
         reason +
         fmt::format("  at most {} waiting for the first bytes, {} moving, {} waiting for others\n",
                     human_seconds(p.wait), human_seconds(p.move), human_seconds(p.finish));
}

}  // namespace

std::string run_json(const RunJob& job, const Outcome& o) {
  const PlanPair& pair = job.pair;
  const PlanCost cost{pair.layout_seconds + pair.planner_seconds + job.summary_seconds,
                      peak_rss_bytes()};
  Json::Object object = plan_object(job.plan, *pair.planner, cost);
  Json::Array seconds;
  for (double s : o.runs.seconds) seconds.push_back(json_number(s));
  object.push_back({"seconds", Json(std::move(seconds))});
  object.push_back({"gb_per_s", json_number(o.runs.bytes_per_second() / 1e9)});
  if (o.processes) {
    add_processes(object, job, o);
  } else {
    object.push_back({"memcpy_gb_per_s", json_number(o.runs.plain_bytes_per_second() / 1e9)});
  }
  object.push_back({"copies", Json(o.runs.copies)});
  object.push_back({"verified", o.verified ? Json(*o.verified) : Json()});
  return Json(std::move(object)).dump(true) + "\n";
}

std::string run_text(const RunJob& job, const Outcome& o) {
  const Style style = Style::of_stdout();
  std::string text = style.title(model_line(job.model)) + "\n" + sides_table(job.pair).text(style) +
                     "\n" + summary_table(job.plan).text(style) + notes_text(job.pair, style) +
                     "\n" + runs_table(o.runs, style) +
                     (o.processes ? best_text(job, o.runs, *o.processes) : best_text(o.runs));
  if (!o.verified) return text;
  const auto proved =
      fmt::format("verified: {} have the same fingerprint in sources and destinations{}",
                  plural(job.model.tensors->size(), "tensor"),
                  job.model.weights ? "" : ", every element is the oracle's");
  return text + fmt::format("  {} ({})\n", style.good(proved), human_seconds(o.verify_seconds));
}

}  // namespace reshard::cli
