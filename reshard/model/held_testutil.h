// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// The slot with this name on this rank.
std::optional<SlotId> slot_named(const ModelLayout& layout, const std::string& name, int rank);
/// The shape as the module reports it ("[8, 4]"), or "absent".
std::string shape_on(const ModelLayout& layout, const std::string& name, int rank);
/// The names of the rank's local tensors that contain `part`, sorted.
std::vector<std::string> names_on(const ModelLayout& layout, int rank, const std::string& part);

/// The fragments of a local tensor as "q_proj[0,8)+0 k_proj[0,4)+8 of 12": rows (dimension 0) of
/// the canonical tensor, the local row where each begins, and the number of local rows. "absent" if
/// the rank does not hold it.
std::string rows_on(const ModelLayout& layout, const std::string& name, int rank);
/// Every fragment with its box, offset and strides in elements: "q_proj[0,4)x[0,8)@16:8,1".
std::string boxes_on(const ModelLayout& layout, const std::string& name, int rank);

/// The first element that no rank holds, as "tensor [2, 0]"; empty if there is none outside omitted
/// tensors. Marks elements one by one, so for small models only.
std::string first_missing(const ModelLayout& layout);

}  // namespace reshard
