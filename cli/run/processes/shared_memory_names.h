// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

namespace reshard::cli {

/// Files in /dev/shm, by path, that a process of this user has open while UCX makes its shared
/// memory. The library takes their names away in a moment; a process that is killed before that
/// leaves them behind, where memory is taken until somebody removes them.
std::set<std::string> shared_memory_names(int pid);

}  // namespace reshard::cli
