// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace reshard {

/// Folders in which to look for files that are installed with reshard, best first: that of the
/// running program, then that of libreshard.so, if it is a shared library. Absolute paths.
std::vector<std::filesystem::path> own_folders();

}  // namespace reshard
