// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/run/run_job.h"
#include "reshard/convert/reference/reference_sides.h"
#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard::cli {

/// Local tensors of both sides, of one rank or of all; empty for a side that does not have the
/// rank.
struct RankWeights {
  std::optional<RankBuffers> source, target;
  std::optional<RankBuffers> back;  ///< the target's second copy, if double-buffered.

  /// The copy of the target that readers use.
  const std::optional<RankBuffers>& readable(const TargetVersion& version) const {
    return version.buffer == 0 ? target : back;
  }
};

/// Allocates and fills those of all ranks in this process. Errors: those of rank_weights().
Result<RankWeights> all_weights(const RunJob& job, const Progress& progress);

/// Allocates those of one rank (`shared`: in memory that peers on this host can map) and fills the
/// source from the model's weights, of which only this rank's bytes are read, or from the oracle.
/// Errors: not enough memory (names the amount); those of the checkpoint; cancelled.
Result<RankWeights> rank_weights(const RunJob& job, Rank rank, bool shared,
                                 const Progress& progress);

/// The job whose reference tensors a run is filled from and checked against.
ReferenceJob reference_job(const RunJob& job);

/// Bytes of the local tensors of all ranks.
Index total_bytes(const ModelLayout& layout);

}  // namespace reshard::cli
