// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_report.h"
#include "cli/measure.h"
#include "cli/plan_text.h"
#include "cli/progress_bar.h"
#include "cli/test_stop.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/hooks.h"
#include "reshard/io/json/plan_json.h"

namespace reshard::cli {
namespace {

std::string convert_text(const ConvertReport& r, const std::string& output) {
  const Index written = r.bytes - r.kept_bytes;
  std::string text =
      fmt::format("{}: {} in {}", output, human_bytes(r.bytes), plural(r.files, "file"));
  if (r.ranks > 0) text += fmt::format(" for {}", plural(r.ranks, "rank"));
  if (r.kept_files > 0)
    text += fmt::format("; {} of an earlier run kept", plural(r.kept_files, "file"));
  if (!r.ignored.empty()) text += "\n" + left_out_text(r.ignored);
  if (!r.omitted.empty())
    text += fmt::format("\nleft out {}, which {} does not hold, such as '{}'",
                        plural(static_cast<Index>(r.omitted.size()), "tensor"), r.layout,
                        r.omitted.front());
  if (!r.files_left_out.empty()) text += "\n" + text_of(r.files_left_out);
  for (const std::string& note : r.notes) text += "\n" + note;
  text += fmt::format("\nwrote {} in {}, {}; {} in all; peak memory {}\n", human_bytes(written),
                      human_seconds(r.write_seconds), rate(written, r.write_seconds),
                      human_seconds(r.seconds), human_bytes(peak_rss_bytes()));
  return r.requantised.empty() ? text : text + r.requantised + "\n";
}

std::string convert_json(const ConvertReport& r, const std::string& output) {
  Json::Array left_out;
  for (const FileLeftOut& file : r.files_left_out)
    left_out.emplace_back(Json::Object{{"name", Json(file.name)}, {"why", Json(file.why)}});
  return json_report("convert", {{"output", Json(output)},
                                 {"layout", Json(r.layout)},
                                 {"bytes", Json(r.bytes)},
                                 {"files", Json(r.files)},
                                 {"ranks", Json(r.ranks)},
                                 {"kept_files", Json(r.kept_files)},
                                 {"kept_bytes", Json(r.kept_bytes)},
                                 {"ignored", json_list(r.ignored)},
                                 {"omitted", json_list(r.omitted)},
                                 {"files_left_out", Json(std::move(left_out))},
                                 {"notes", json_list(r.notes)},
                                 {"requantised", Json(r.requantised)},
                                 {"write_seconds", json_number(r.write_seconds)},
                                 {"seconds", json_number(r.seconds)},
                                 {"peak_rss_bytes", Json(peak_rss_bytes())}});
}

/// Errors of the layouts name ConvertOptions' fields: here they are options.
Error with_option_names(Error error) {
  if (error.message.starts_with("to '") || error.message.starts_with("from '"))
    error.message.insert(0, "--");
  return error;
}

}  // namespace

Result<int> execute(const ConvertArguments& a) {
  catch_interrupts();
  ProgressBar bar;
  ConvertOptions options = a.options;
  options.progress = bar.progress();
  const auto report = convert_checkpoint(options, stop_for_test);
  if (!report) return tl::unexpected(as_interrupted(with_option_names(report.error())));
  print(a.json ? convert_json(*report, options.output) : convert_text(*report, options.output));
  return 0;
}

}  // namespace reshard::cli
