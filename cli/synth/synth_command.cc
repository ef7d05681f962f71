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

std::string synth_text(const SynthesizeReport& r, const std::string& output) {
  return fmt::format("{}\nwrote {} in {} to {}, {}, {}\n", model_line(r.model),
                     human_bytes(r.bytes), plural(r.files, "file"), output,
                     human_seconds(r.seconds), rate(r.bytes - r.kept_bytes, r.seconds));
}

std::string synth_json(const SynthesizeReport& r, const std::string& output) {
  return json_report("synth", {{"output", Json(output)},
                               {"tensors", Json(r.model.tensors->size())},
                               {"bytes", Json(r.bytes)},
                               {"files", Json(r.files)},
                               {"kept_bytes", Json(r.kept_bytes)},
                               {"seconds", json_number(r.seconds)}});
}

}  // namespace

Result<int> execute(const SynthArguments& a) {
  catch_interrupts();
  ProgressBar bar;
  SynthesizeOptions options = a.options;
  options.progress = bar.progress();
  const auto report = synthesize_checkpoint(options, stop_for_test);
  if (!report) return tl::unexpected(as_interrupted(report.error()));
  print(a.json ? synth_json(*report, options.output) : synth_text(*report, options.output));
  return 0;
}

}  // namespace reshard::cli
