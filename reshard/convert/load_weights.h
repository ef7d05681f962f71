// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/io/open_model.h"

namespace reshard {

struct LoadOptions {
  int threads = 0;         ///< 0: one per core that this process may use.
  Progress progress = {};  ///< bytes of the buffers; returning false cancels.
};

/// Fills local tensors from a checkpoint: those of all ranks in `buffers`, or of `rank` alone, of
/// which only the bytes that it holds are read. Errors: those of CheckpointSource::bind() and of
/// the plan between the checkpoint's layout and the buffers'; files that changed meanwhile;
/// cancelled.
/// @pre model.weights; the buffers' layout does not quantise what the checkpoint stores plain
Result<> load_weights(const Model& model, const RankBuffers& buffers, std::optional<Rank> rank,
                      const LoadOptions& options = {});

}  // namespace reshard
