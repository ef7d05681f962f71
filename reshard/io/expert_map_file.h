// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/families.h"

namespace reshard {

/// Parses an expert map: a JSON list that gives the logical expert of each physical one, such as
/// [0, 1, 2, 0], for all layers; or a list of such lists, one per layer with experts. Errors are
/// Code::corrupt and name the entry but not the file.
Result<ExpertTables> parse_expert_map(std::string_view text);

/// parse_expert_map() of a file of at most 16 MiB. Errors begin with its path.
Result<ExpertTables> read_expert_map(const std::string& path);

}  // namespace reshard
