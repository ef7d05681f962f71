// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/plan_text.h"
#include "cli/progress_bar.h"
#include "cli/test_stop.h"
#include "reshard/base/number_text.h"
#include "reshard/convert/hooks.h"

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
  print(convert_text(*report, options.output));
  return 0;
}

}  // namespace reshard::cli
