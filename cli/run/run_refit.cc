// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_refit.h"

#include "cli/progress_bar.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/plain_copy.h"

namespace reshard::cli {

Result<RefitRuns> run_direct(const Planner& planner, const RankBuffers& source,
                             const RankBuffers& target, const RunArguments& arguments,
                             int threads) {
  RefitRuns runs;
  ProgressBar bar;
  InProcessOptions options;
  options.threads = threads;
  options.progress = bar.progress();
  auto refit = RESHARD_TRY(InProcessRefit::prepare(planner, source, target, options));
  for (Index i = 0; i < arguments.repeat; ++i) {
    const RefitReport report = RESHARD_TRY(refit.run());
    runs.seconds.push_back(report.seconds);
    runs.bytes = report.bytes;
    runs.copies = report.copies;
  }
  // Bytes that several ranks receive are read once from memory and then from caches.
  runs.plain_seconds = plain_copy_seconds(runs.bytes, planner.source().model().bytes(), threads);
  return runs;
}

}  // namespace reshard::cli
