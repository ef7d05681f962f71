// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

/// The named examples: config files that come with the program, known by their file name without
/// ".json".
namespace reshard {

/// The path of the example's config, or none. Looked for in the folder $RESHARD_EXAMPLES where that
/// is set, else in ../share/reshard/configs from the program and from libreshard.so, and in the
/// source tree that they were built from.
std::optional<std::string> find_example(const std::string& name);

/// All names, sorted.
std::vector<std::string> example_names();

}  // namespace reshard
