// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/families/dtensor.h"

/// Files of DTensor placements, as JSON. docs/dtensor.md describes every key.
namespace reshard {

/// Most meshes of a file.
inline constexpr std::size_t kMaxDTensorMeshes = 1024;

/// The meshes and rules in `text`. Whatever a rule names is checked here: its mesh exists, there is
/// a placement for each of its dimensions, "$N" and "number" refer to wildcards that there are.
/// Errors are Code::corrupt, say which mesh or rule (from 1) and which key, and do not name the
/// file.
Result<DTensorSet> parse_dtensor(std::string_view text);

/// parse_dtensor of a file of at most 16 MiB; errors begin with its path.
Result<DTensorSet> read_dtensor(const std::string& path);

}  // namespace reshard
