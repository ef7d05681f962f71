// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/run/processes/rank_place.h"
#include "cli/run/run_job.h"

namespace reshard::cli {

/// Runs one rank over processes: joins the group, fills its part of the source, refits, verifies.
/// Returns the exit code after printing: of a program's processes the first prints the report, and
/// if the run fails, the first that is alive, or the parent that started them, prints one line.
///
/// Only the first process needs `job.plan`. Errors: those from before the group exists.
Result<int> run_rank(const RunJob& job, RankPlace place);

}  // namespace reshard::cli
