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

Result<int> execute(const SynthArguments& a) {
  catch_interrupts();
  ProgressBar bar;
  SynthesizeOptions options = a.options;
  options.progress = bar.progress();
  const auto report = synthesize_checkpoint(options, stop_for_test);
  if (!report) return tl::unexpected(as_interrupted(report.error()));
  print(fmt::format("{}\nwrote {} in {} to {}, {}, {}\n", model_line(report->model),
                    human_bytes(report->bytes), plural(report->files, "file"), options.output,
                    human_seconds(report->seconds),
                    rate(report->bytes - report->kept_bytes, report->seconds)));
  return 0;
}

}  // namespace reshard::cli
