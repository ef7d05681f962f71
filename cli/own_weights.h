// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/run_job.h"
#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard::cli {

/// One rank's local tensors of the layouts that it is in.
struct OwnWeights {
  std::optional<RankBuffers> source, target;
  const RankBuffers* source_or_null() const { return source ? &*source : nullptr; }
  const RankBuffers* target_or_null() const { return target ? &*target : nullptr; }
};

/// Allocates them (`shared`: where peers of this host can map them) and fills the source's from the
/// model's weights, reading of their files only what this rank holds, or from the oracle. Errors:
/// not enough memory (how much); those of the checkpoint; cancelled.
Result<OwnWeights> own_weights(const RunJob& job, Rank rank, bool shared, const Progress& progress);

/// Bytes of the local tensors of all ranks.
Index total_bytes(const ModelLayout& layout);

}  // namespace reshard::cli
