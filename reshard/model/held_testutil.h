// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// The slot of this name on this rank.
std::optional<SlotId> slot_named(const ModelLayout& layout, const std::string& name, int rank);
/// "[8, 4]", the shape as the module reports it, or "absent".
std::string shape_on(const ModelLayout& layout, const std::string& name, int rank);
/// The names that a rank holds and that contain `part`, sorted.
std::vector<std::string> names_on(const ModelLayout& layout, int rank, const std::string& part);

/// "q_proj[0,8)+0 k_proj[0,4)+8 of 12": the fragments of a local tensor by rows (dimension 0) of
/// the canonical tensor, with the row of the local tensor where each begins, and the local rows.
/// "absent" where the rank does not hold it.
std::string rows_on(const ModelLayout& layout, const std::string& name, int rank);
/// "q_proj[0,4)x[0,8)@16:8,1": every fragment with its box, its offset and strides in elements.
std::string boxes_on(const ModelLayout& layout, const std::string& name, int rank);

/// The first element of a canonical tensor that no rank holds, as "tensor [2, 0]"; empty when all
/// that the layout does not omit are held. For small models: marks elements one by one.
std::string first_missing(const ModelLayout& layout);

}  // namespace reshard
