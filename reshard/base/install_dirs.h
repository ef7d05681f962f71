// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace reshard {

/// Folders in which to look for files that are installed with reshard, best first: that of the
/// running program, then that of the shared library or Python extension that has this code, if it
/// is not in the program. Absolute paths.
std::vector<std::filesystem::path> install_dirs();

}  // namespace reshard
