// SPDX-License-Identifier: Apache-2.0
// Values by which a benchmark knows that every element arrived.
#pragma once

#include "reshard/base/result.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard::bench {

/// Gives every element of the buffers' ranks the oracle's value, with all cores.
Result<> fill_values(const RankBuffers& buffers);

/// Bytes that were compared. Errors: an element that is not the oracle's.
Result<Index> check_values(const RankBuffers& buffers);

/// Overwrites every local tensor, so that what is checked later was written in between.
void spoil_values(const RankBuffers& buffers);

}  // namespace reshard::bench
