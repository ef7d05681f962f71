// SPDX-License-Identifier: Apache-2.0
#include "cli/run_refit.h"

#include "cli/progress_bar.h"
#include "reshard/exec/direct.h"
#include "reshard/refit/session_report.h"

namespace reshard::cli {

double plain_seconds(Index bytes, int threads) {
  const double ceiling = copy_ceiling(threads);
  return ceiling > 0 ? static_cast<double>(bytes) * 1e-9 / ceiling : 0;
}

Result<RefitRuns> run_direct(const Planner& planner, const RankBuffers& source,
                             const RankBuffers& target, const RunArguments& arguments,
                             int threads) {
  RefitRuns runs;
  ProgressBar bar;
  DirectOptions options;
  options.threads = threads;
  options.progress = bar.from();
  auto refit = RESHARD_TRY(DirectRefit::prepare(planner, source, target, options));
  for (Index i = 0; i < arguments.repeat; ++i) {
    const RefitReport report = RESHARD_TRY(refit.run());
    runs.seconds.push_back(report.seconds);
    runs.bytes = report.bytes;
    runs.copies = report.copies;
  }
  runs.plain_seconds = RESHARD_TRY(refit.plain_copy_seconds());
  return runs;
}

}  // namespace reshard::cli
