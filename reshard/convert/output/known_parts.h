// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "reshard/model/model_layout.h"
#include "reshard/model/quant/codes.h"

namespace reshard::output {

/// The names of the tensors whose elements are known without them (CodedWeight::is_known()).
/// Engines drop them, and files have them.
std::set<std::string> known_parts(const ModelCodes& codes);

/// The bytes of a rank's local tensor, if it is a known part; empty for other slots.
std::vector<std::byte> known_part(const ModelCodes& codes, const ModelLayout& layout, Rank r,
                                  SlotId slot);

}  // namespace reshard::output
