// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"

namespace reshard {

/// Fills every fragment of every rank in the buffers of a source with values that depend on tensor
/// and element only, stored as the layout stores them: small negative numbers, for which every map
/// and its inverse are defined.
void fill_values(const RankBuffers& source);

/// The number of elements of all fragments in the buffers of the planner's target that are not what
/// a source filled by fill_values() gives, converted one element at a time.
Index count_wrong_values(const Planner& planner, const RankBuffers& target);

}  // namespace reshard
