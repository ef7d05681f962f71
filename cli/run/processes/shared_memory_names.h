// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

namespace reshard::cli {

/// Paths of files in /dev/shm that a process of this user has open while UCX creates its shared
/// memory. UCX unlinks them at once; a process that is killed before that leaves them, and their
/// memory, behind.
std::set<std::string> shared_memory_names(int pid);

}  // namespace reshard::cli
