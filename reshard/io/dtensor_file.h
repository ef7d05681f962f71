// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/families/dtensor.h"

/// DTensor files: meshes and placements as JSON. docs/dtensor.md describes every key.
namespace reshard {

/// The largest number of meshes in a file.
inline constexpr std::size_t kMaxDTensorMeshes = 1024;

/// Parses meshes and rules, and checks all references in rules: the mesh exists, each of its
/// dimensions has a placement, and "$N" and "number" refer to existing wildcards. Errors are
/// Code::corrupt and name the mesh or rule (counted from 1) and the key, but not the file.
Result<DTensorSet> parse_dtensor(std::string_view text);

/// parse_dtensor() of a file of at most 16 MiB. Errors begin with its path.
Result<DTensorSet> read_dtensor(const std::string& path);

}  // namespace reshard
