// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/exec/rank_buffers.h"

namespace reshard {

/// Fills every fragment of every rank in the buffers with bytes that depend on tensor and element
/// only. Slow, plain, and independent of plans and copies.
void fill_elements(const RankBuffers& buffers);

/// The number of elements of all fragments that are not as fill_elements leaves them.
Index count_wrong_elements(const RankBuffers& buffers);

/// Buffers for all ranks of a layout.
RankBuffers allocate_all(std::shared_ptr<const ModelLayout> layout);

}  // namespace reshard
