// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "reshard/base/result.h"

namespace reshard {

/// The location of memory of this process in a file that other processes can map.
struct SharedLocation {
  int fd;                ///< of this process; /proc/PID/fd/FD for others. Never closed.
  std::uint64_t offset;  ///< bytes.
};

/// The memory of this process that other processes can map: an anonymous file (memfd) that never
/// shrinks, so a process that maps it cannot fault within the size that it has seen. The kernel
/// frees the file with the last process that has it open, so nothing is left behind, however a
/// process ends. Thread-safe.
///
/// After fork() the child shares the parent's memory, including writes. The child allocates from a
/// file of its own; freeing memory of the parent has no effect there.
namespace shared_arena {

/// Allocates `bytes` zero bytes: from 2 MiB on 2 MiB aligned and with huge pages requested,
/// otherwise 64-byte aligned. @pre bytes > 0. Errors: `io` if the system lacks address space or
/// memory.
Result<std::byte*> allocate(std::size_t bytes);
/// Returns the memory to the system. @pre `data` and `bytes` are those of one allocate()
void free(std::byte* data, std::size_t bytes);

/// The descriptor of the file, which is created if necessary. Errors: as allocate().
Result<int> file();
/// The location of `memory`, or nothing if it is not entirely in this arena. Takes no lock.
std::optional<SharedLocation> find(std::span<const std::byte> memory);

}  // namespace shared_arena
}  // namespace reshard
