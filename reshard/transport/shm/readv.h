// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>

#include "reshard/transport/transport.h"

namespace reshard::shm {

/// Reads pieces of another process's memory that begins at `address`: one copy by the kernel, and
/// one call for up to 1024 pieces; neighbours are joined. Errors: `aborted` when rank `owner`,
/// which is that process, is gone; `unsupported` when the kernel does not give this memory.
Result<> read_memory(pid_t process, Rank owner, std::uint64_t address, std::span<const Get> pieces);

}  // namespace reshard::shm
