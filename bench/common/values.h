// SPDX-License-Identifier: Apache-2.0
// Values that show a benchmark that every element arrived.
#pragma once

#include "reshard/base/result.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard::bench {

/// Sets every element of the buffers to the oracle's value, on all cores.
Result<> fill_values(const RankBuffers& buffers);

/// Compares every element with the oracle. @return bytes compared. Errors: an element that differs.
Result<Index> check_values(const RankBuffers& buffers);

/// Overwrites every local tensor, so that a later check only passes for values written since.
void spoil_values(const RankBuffers& buffers);

}  // namespace reshard::bench
