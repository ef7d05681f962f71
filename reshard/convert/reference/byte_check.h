// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/convert/reference/reference_tensors.h"
#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard {

/// Fills the local tensors of the ranks in `buffers` with the reference. Errors: those of `side`;
/// cancelled. @pre `buffers` are of side.side().stored()
Result<> fill_from_reference(ReferenceTensors& side, const RankBuffers& buffers, int threads,
                             const Progress& progress);

/// Compares every byte of the local tensors of the ranks in `buffers` with the reference; `corrupt`
/// names rank, local tensor, tensor and element of a difference. Skips local tensors with a tensor
/// that `moved`, by TensorId of side.side().values, excludes. Errors: those of `side`; cancelled.
/// @pre as above; threads >= 1
Result<> check_against_reference(ReferenceTensors& side, const RankBuffers& buffers,
                                 const std::vector<bool>& moved, int threads,
                                 const Progress& progress);

}  // namespace reshard
