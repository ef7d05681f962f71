// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/run/rank_weights.h"
#include "cli/run/run_job.h"

namespace reshard::cli {

/// Most ranks of a run whose ranks are threads.
inline constexpr Index kMaxThreadRanks = 512;

/// Refits by a session between ranks that are threads of this process, and verifies what the
/// session can verify. `weights` hold all ranks. Sets `version` to the targets' version. Errors:
/// those of the session; too many ranks.
Result<Outcome> run_threads(const RunJob& job, const RankWeights& weights, TargetVersion& version);

}  // namespace reshard::cli
