// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/run/run_job.h"
#include "reshard/convert/reference/reference_sides.h"
#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard::cli {

/// Local tensors of both sides, of one rank or of all, as far as they are in the layouts.
struct RankWeights {
  std::optional<RankBuffers> source, target;
  std::optional<RankBuffers> back;  ///< the target's second copy, where there are two.

  /// The copy of the target that readers may use.
  const std::optional<RankBuffers>& readable(const TargetVersion& held) const {
    return held.buffer == 0 ? target : back;
  }
};

/// Those of all ranks, in this process. Errors: as rank_weights().
Result<RankWeights> all_weights(const RunJob& job, const Progress& progress);

/// Allocates them (`shared`: where peers of this host can map them) and fills the source's from the
/// model's weights, reading of their files only what this rank holds, or from the oracle. Errors:
/// not enough memory (how much); those of the checkpoint; cancelled.
Result<RankWeights> rank_weights(const RunJob& job, Rank rank, bool shared,
                                 const Progress& progress);

/// The job whose reference tensors a run is filled from and checked against.
ReferenceJob reference_job(const RunJob& job);

/// Bytes of the local tensors of all ranks.
Index total_bytes(const ModelLayout& layout);

}  // namespace reshard::cli
