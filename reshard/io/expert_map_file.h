// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/families.h"

namespace reshard {

/// The tables in `text`: a JSON list of logical experts, [0, 1, 2, 0], which stands for all layers;
/// or a list of such lists, one per layer with experts. Errors are Code::corrupt, say which entry,
/// and do not name the file.
Result<ExpertTables> parse_expert_map(std::string_view text);

/// parse_expert_map of a file of at most 16 MiB; errors begin with its path.
Result<ExpertTables> read_expert_map(const std::string& path);

}  // namespace reshard
