// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "reshard/base/result.h"

namespace reshard {

/// Where memory of this process lies in a file that other processes can map.
struct SharedPlace {
  int fd;                ///< of this process; /proc/PID/fd/FD for others. Never closed.
  std::uint64_t offset;  ///< bytes.
};

/// The memory of this process that other processes can map: one file without a name (memfd), whose
/// size is never reduced, so that who maps it cannot fault within the size it saw. The kernel frees
/// it with the last process that has it: nothing is left behind, however a process ends. Any thread
/// may call anything.
///
/// After fork() the child sees the parent's shared memory, and writes there are the parent's too;
/// what the child allocates lies in a file of its own, and what it frees of the parent's stays.
namespace shared_arena {

/// `bytes` zero bytes, 64-byte aligned, or 2 MiB aligned and asking for huge pages from 2 MiB on.
/// @pre bytes > 0. Errors: io when the system has no address space or refuses.
Result<std::byte*> allocate(std::size_t bytes);
/// Gives the memory back to the system. @pre as allocate() returned it, of the same size
void free(std::byte* data, std::size_t bytes);

/// The file, made if there was no shared memory yet. Errors: as allocate.
Result<int> file();
/// Where `memory` lies, or nothing when it is not all of this arena. Takes no lock.
std::optional<SharedPlace> find(std::span<const std::byte> memory);

}  // namespace shared_arena
}  // namespace reshard
