// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/plan_text.h"
#include "cli/run/run_job.h"
#include "reshard/base/number_text.h"
#include "reshard/io/json/plan_json.h"

namespace reshard::cli {
namespace {

void add_session(Json::Object& object, const RunJob& job, const Outcome& o) {
  const SessionFigures& p = *o.session;
  object.push_back({"transport", Json(job.arguments.transport)});
  object.push_back({"path", Json(p.path)});
  object.push_back({"path_reason", Json(p.reason)});
  object.push_back({"processes", Json(job.arguments.in_processes() ? Index{p.ranks} : 1)});
  object.push_back({"version", Json(p.version)});
  object.push_back({"bytes_delivered", Json(o.runs.bytes)});
  object.push_back(
      {"moving_gb_per_s",
       json_number(p.move > 0 ? static_cast<double>(o.runs.bytes) / p.move / 1e9 : 0)});
  object.push_back({"bytes_moved_wire", Json(p.wire)});
  object.push_back({"bytes_moved_local", Json(p.local)});
  object.push_back({"refit_messages", Json(p.messages)});
  object.push_back({"staging_bytes", Json(p.staging_bytes)});
  object.push_back({"most_peak_rss_bytes", Json(p.peak_rss_bytes)});
  object.push_back({"phases", Json(Json::Object{{"join", json_number(p.join)},
                                                {"fill", json_number(p.fill)},
                                                {"prepare", json_number(p.prepare)},
                                                {"begin", json_number(p.begin)},
                                                {"wait", json_number(p.wait)},
                                                {"move", json_number(p.move)},
                                                {"finish", json_number(p.finish)},
                                                {"check", json_number(p.check)},
                                                {"commit", json_number(p.commit)},
                                                {"verify", json_number(o.verify_seconds)}})});
}

Json rank_or_null(Rank rank) { return rank.value() < 0 ? Json() : Json(Index{rank.value()}); }

Json why_slow_json(const RunJob& job, const WhySlow& why) {
  Json::Object link{{"from", rank_or_null(why.link_from)},
                    {"to", rank_or_null(why.link_to)},
                    {"bytes", Json(why.link_bytes)},
                    {"seconds", json_number(why.link_seconds)},
                    {"bytes_per_second", json_number(why.link_bytes_per_second())},
                    {"fastest_bytes_per_second", json_number(why.fastest_link_per_second)}};
  return Json(Json::Object{{"trace", Json(job.arguments.trace)},
                           {"seconds", json_number(why.seconds)},
                           {"bound_seconds", json_number(why.bound_seconds)},
                           {"bound_by", Json(why.bound_by)},
                           {"bound_fraction", json_number(why.bound_fraction())},
                           {"slowest_rank", rank_or_null(why.slowest_rank)},
                           {"behind_seconds", json_number(why.behind_seconds)},
                           {"waited_seconds", json_number(why.waited_seconds)},
                           {"late_rank", rank_or_null(why.late_rank)},
                           {"late_seconds", json_number(why.late_seconds)},
                           {"slowest_link", why.link_from.value() < 0 ? Json() : Json(link)},
                           {"clock_error_seconds", json_number(why.clock_error_seconds)},
                           {"dropped_events", Json(why.dropped)}});
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

std::string percent_text(const RefitRuns& runs) {
  if (runs.plain_seconds <= 0) return "without the memory for a plain copy to compare with";
  const double percent = 100 * runs.bytes_per_second() / runs.plain_bytes_per_second();
  return fmt::format("{:.0f} % of a plain copy of the same bytes ({})", percent,
                     rate(runs.bytes, runs.plain_seconds));
}

std::string device_text(const RefitRuns& runs) {
  return runs.device == "cpu" ? "" : " on " + runs.device;
}

std::string best_text(const RefitRuns& runs) {
  const std::string checked =
      runs.check_seconds > 0
          ? fmt::format("  fingerprints of both sides agree after each run ({})\n",
                        human_seconds(runs.check_seconds))
          : "";
  return fmt::format("  best run {}{}, {}; {}\n", rate(runs.bytes, runs.best_seconds()),
                     device_text(runs), percent_text(runs), copies_text(runs)) +
         checked;
}

/// The seconds of the best refit, by phase.
std::string phases_text(const RunJob& job, const RefitRuns& runs, const SessionFigures& p) {
  std::string text =
      fmt::format("  at most {} waiting for the first bytes, {} moving ({}), {} waiting for others",
                  human_seconds(p.wait), human_seconds(p.move), rate(runs.bytes, p.move),
                  human_seconds(p.finish));
  if (job.arguments.check_fingerprints)
    text += fmt::format("; {} comparing fingerprints", human_seconds(p.check));
  return text + "\n";
}

std::string best_text(const RunJob& job, const RefitRuns& runs, const SessionFigures& p) {
  const std::string messages =
      p.messages > 0 ? fmt::format("; {} in all", plural(p.messages, "message")) : "";
  const std::string reason =
      p.reason.empty() ? "" : fmt::format("  no direct path: {}\n", p.reason);
  std::string text =
      fmt::format("  best run {} between {}{} over {}, {} path; {}{}\n",
                  rate(runs.bytes, runs.best_seconds()), plural(p.ranks, "rank"), device_text(runs),
                  job.arguments.transport, p.path, copies_text(runs), messages) +
      reason + phases_text(job, runs, p);
  text += fmt::format("  {} delivered, {}; {} travelled between ranks, {} on a rank\n",
                      human_bytes(runs.bytes), percent_text(runs), human_bytes(p.wire),
                      human_bytes(p.local));
  return text + fmt::format("  version {} is whole on every target\n", p.version);
}

/// The number of verified tensors: those that nothing moved have nothing to be compared with.
Index tensors_moved(const Planner& planner) {
  Index moved = 0;
  for (Index i = 0; i < planner.source().model().size(); ++i)
    moved += planner.moves(TensorId(static_cast<TensorId::rep>(i))) ? 1 : 0;
  return moved;
}

std::string verified_text(const RunJob& job, const Outcome& o) {
  const std::string tensors = plural(tensors_moved(*job.pair.planner), "tensor");
  const std::string text =
      job.pair.quantises()
          ? fmt::format("verified: {}{} equal byte for byte what the source's values convert to",
                        tensors, job.pair.to.quantised ? ", scales included," : "")
          : fmt::format("verified: {} have the same fingerprint in sources and destinations{}",
                        tensors, job.model.weights ? "" : ", every element is the oracle's");
  return fmt::format("  {} ({})\n", Style::of_stdout().good(text), human_seconds(o.verify_seconds));
}

}  // namespace

std::string run_json(const RunJob& job, const Outcome& o) {
  const LayoutPair& pair = job.pair;
  const PlanCost cost{pair.layout_seconds + pair.planner_seconds + job.summary_seconds,
                      peak_rss_bytes()};
  Json::Object object = plan_object(job.plan, *pair.planner, cost);
  Json::Array seconds;
  for (double s : o.runs.seconds) seconds.push_back(json_number(s));
  object.push_back({"device", Json(o.runs.device)});
  object.push_back({"seconds", Json(std::move(seconds))});
  object.push_back({"gb_per_s", json_number(o.runs.bytes_per_second() / 1e9)});
  object.push_back({"memcpy_gb_per_s", json_number(o.runs.plain_bytes_per_second() / 1e9)});
  if (o.session) add_session(object, job, o);
  if (job.pair.quantises()) object.push_back({"routes", conversion_json(job.conversions)});
  if (o.why_slow) object.push_back({"why_slow", why_slow_json(job, *o.why_slow)});
  if (o.runs.check_seconds > 0)
    object.push_back({"check_seconds", json_number(o.runs.check_seconds)});
  object.push_back({"copies", Json(o.runs.copies)});
  object.push_back({"verified", o.verified ? Json(*o.verified) : Json()});
  object.push_back(
      {"verified_tensors", o.verified ? Json(tensors_moved(*job.pair.planner)) : Json()});
  return json_report("run", std::move(object));
}

std::string run_text(const RunJob& job, const Outcome& o) {
  const Style style = Style::of_stdout();
  std::string text =
      style.title(model_line(job.model)) + "\n" + sides_table(job.pair).text(style) + "\n";
  text += job.pair.quantises() ? conversion_table(job.conversions).text(style)
                               : summary_table(job.plan).text(style);
  text += notes_text(job.pair, style) + "\n" + runs_table(o.runs, style);
  text += o.session ? best_text(job, o.runs, *o.session) : best_text(o.runs);
  if (o.why_slow) text += why_slow_text(*o.why_slow);
  return o.verified ? text + verified_text(job, o) : text;
}

}  // namespace reshard::cli
