// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/progress_bar.h"
#include "cli/table.h"
#include "reshard/base/number_text.h"
#include "reshard/io/json/plan_json.h"

namespace reshard::cli {
namespace {

/// Lines of the list of changes that the text form prints.
constexpr std::size_t kShown = 20;

/// The error, or that of the interrupt which cancelled the operation.
tl::unexpected<Error> failed(Error error) {
  if (error.code == Code::aborted && interrupted()) error = interruption();
  return tl::unexpected(std::move(error));
}

std::string percent(Index part, Index whole) {
  return whole > 0
             ? fmt::format("{:.2f} %", 100 * static_cast<double>(part) / static_cast<double>(whole))
             : "-";
}

std::string title(const DeltaChange& change) {
  if (change.name.empty()) return change.file.empty() ? "(header)" : change.file;
  return change.name;
}

std::string delta_json(const std::string& operation, const std::string& path,
                       const DeltaReport& r) {
  Json::Array changes;
  for (const DeltaChange& c : r.changes)
    changes.emplace_back(Json::Object{{"file", Json(c.file)},
                                      {"tensor", Json(c.name)},
                                      {"state", Json(c.state)},
                                      {"bytes", Json(c.bytes)},
                                      {"delta_bytes", Json(c.delta_bytes)}});
  return json_report("delta", {{"operation", Json(operation)},
                               {"delta", Json(path)},
                               {"step", Json(r.step)},
                               {"anchor", Json(r.anchor)},
                               {"base", Json(r.base)},
                               {"result", Json(r.result)},
                               {"result_bytes", Json(r.result_bytes)},
                               {"delta_bytes", Json(r.delta_bytes)},
                               {"share", json_number(r.share())},
                               {"unchanged", Json(r.unchanged)},
                               {"changes", Json(std::move(changes))},
                               {"seconds", json_number(r.seconds)},
                               {"peak_rss_bytes", Json(peak_rss_bytes())}});
}

std::string delta_text(const std::string& path, const DeltaReport& r) {
  std::string text =
      fmt::format("{}: {} for a checkpoint of {}, {}\n", path, human_bytes(r.delta_bytes),
                  human_bytes(r.result_bytes), percent(r.delta_bytes, r.result_bytes));
  text += fmt::format("  step    {} from anchor {}\n  base    {}\n  result  {}\n", r.step, r.anchor,
                      r.base, r.result);
  Index counts[3] = {};
  for (const DeltaChange& c : r.changes)
    ++counts[c.state == "changed" ? 0 : c.state == "added" ? 1 : 2];
  text +=
      fmt::format("  parts   {} changed, {} added, {} removed, {} unchanged\n", grouped(counts[0]),
                  grouped(counts[1]), grouped(counts[2]), grouped(r.unchanged));
  return text;
}

/// The changes with the most bytes, those first.
std::string changes_text(const DeltaReport& r) {
  if (r.changes.empty()) return "";
  std::vector<DeltaChange> largest = r.changes;
  std::ranges::stable_sort(largest, std::greater<>(), &DeltaChange::delta_bytes);
  Table table({{"largest changes"},
               {""},
               {"bytes", Table::Align::right},
               {"in the delta", Table::Align::right},
               {"", Table::Align::right}});
  for (std::size_t i = 0; i < largest.size() && i < kShown; ++i) {
    const DeltaChange& c = largest[i];
    table.add({title(c), c.state, human_bytes(c.bytes), human_bytes(c.delta_bytes),
               percent(c.delta_bytes, c.bytes)});
  }
  std::string text = table.text(Style::of_stdout());
  if (largest.size() > kShown)
    text += fmt::format("  and {} more; see --json\n", largest.size() - kShown);
  return text;
}

Result<int> make(const DeltaArguments& a) {
  ProgressBar bar;
  const auto report = make_delta({.base = a.paths[0],
                                  .next = a.paths[1],
                                  .output = a.paths[2],
                                  .after = a.after,
                                  .sync = a.sync,
                                  .threads = a.threads,
                                  .progress = bar.progress()});
  if (!report) return failed(report.error());
  print(a.json ? delta_json("make", a.paths[2], *report)
               : delta_text(a.paths[2], *report) + fmt::format("made in {}; peak memory {}\n",
                                                               human_seconds(report->seconds),
                                                               human_bytes(peak_rss_bytes())));
  return 0;
}

std::string apply_json(const std::string& output, const ApplyDeltasReport& r) {
  return json_report("delta", {{"operation", Json(std::string("apply"))},
                               {"output", Json(output)},
                               {"first_step", Json(r.first_step)},
                               {"step", Json(r.step)},
                               {"base", Json(r.base)},
                               {"result", Json(r.result)},
                               {"files", Json(r.files)},
                               {"bytes", Json(r.bytes)},
                               {"delta_bytes", Json(r.delta_bytes)},
                               {"seconds", json_number(r.seconds)},
                               {"peak_rss_bytes", Json(peak_rss_bytes())}});
}

std::string apply_text(const std::string& output, const ApplyDeltasReport& r) {
  const std::string steps = r.step == r.first_step
                                ? fmt::format("step {}", r.step)
                                : fmt::format("steps {} to {}", r.first_step, r.step);
  return fmt::format(
      "{}: {} in {}, by {}, {} of deltas\n  base    {}\n  result  {}\napplied in {}, {}; peak "
      "memory {}\n",
      output, human_bytes(r.bytes), plural(r.files, "file"), steps, human_bytes(r.delta_bytes),
      r.base, r.result, human_seconds(r.seconds), rate(r.bytes, r.seconds),
      human_bytes(peak_rss_bytes()));
}

Result<int> apply(const DeltaArguments& a) {
  ProgressBar bar;
  const auto report = apply_deltas({.base = a.paths.front(),
                                    .deltas = {a.paths.begin() + 1, a.paths.end() - 1},
                                    .output = a.paths.back(),
                                    .sync = a.sync,
                                    .threads = a.threads,
                                    .progress = bar.progress()});
  if (!report) return failed(report.error());
  print(a.json ? apply_json(a.paths.back(), *report) : apply_text(a.paths.back(), *report));
  return 0;
}

Result<int> inspect(const DeltaArguments& a) {
  const auto report = RESHARD_TRY(inspect_delta(a.paths[0]));
  print(a.json ? delta_json("inspect", a.paths[0], report)
               : delta_text(a.paths[0], report) + changes_text(report));
  return 0;
}

}  // namespace

Result<int> execute(const DeltaArguments& a) {
  catch_interrupts();
  switch (a.operation) {
    case DeltaArguments::Operation::make: return make(a);
    case DeltaArguments::Operation::apply: return apply(a);
    default: return inspect(a);
  }
}

}  // namespace reshard::cli
