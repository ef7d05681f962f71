// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace reshard::shm {

/// If Yama restricts ptrace, permits other processes to read the memory of this one.
void let_peers_read();

/// True if this process can read the memory of another, which has `expected` at `address`.
bool reads_memory_of(pid_t pid, std::uint64_t address, std::uint64_t expected);

}  // namespace reshard::shm
