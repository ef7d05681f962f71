// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/run/processes/rank_place.h"
#include "cli/run/run_job.h"

namespace reshard::cli {

/// The life of one rank of a run over processes: joins the others, fills its part of the source,
/// refits, proves. Returns the exit code once it has said what there is to say: of the processes of
/// one program the first prints the report, and where the run fails one line comes of them all,
/// from the first that lives, or from the parent that started them.
///
/// `job.plan` is needed on the first process only. Errors: those from before the group exists.
Result<int> run_rank(const RunJob& job, const Place& place);

}  // namespace reshard::cli
