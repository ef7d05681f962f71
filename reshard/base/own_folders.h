// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

namespace reshard {

/// Where to look for files that are installed with reshard, best first: the folder of the running
/// program, then the folder of libreshard.so where reshard is that library. Absolute paths.
std::vector<std::filesystem::path> own_folders();

}  // namespace reshard
