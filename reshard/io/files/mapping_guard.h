// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

/// Reading a mapped file beyond its end (after another process truncated it), or a page that the
/// disk cannot deliver, raises SIGBUS. The guard lets the reader continue instead: the rest of the
/// mapping becomes zeros and is marked as lost. So call MappedFile::unchanged() after reading and
/// before relying on the result. The guard does not slow down reads.
namespace reshard {

/// Handles SIGBUS in all present and future MappedFiles of this process, in all threads. For
/// programs, not for libraries: SIGBUS elsewhere goes to the previous handler. Call it again after
/// loading a library that may have installed its own handler.
void guard_mappings();

/// True if any mapping was lost since the process began. May be called from any thread.
bool any_mapping_lost();

namespace files {

/// A mapping as the signal handler sees it. Never freed, but reused for another mapping.
struct GuardedMapping {
  std::atomic<std::uintptr_t> begin = 0;  ///< 0: free.
  std::atomic<std::uintptr_t> end = 0;
  std::atomic<bool> lost = false;
  GuardedMapping* next = nullptr;
};

/// Registers a mapping with the handler. Call leave_mapping() before unmapping it.
GuardedMapping* enter_mapping(const void* data, std::size_t size);
void leave_mapping(GuardedMapping* mapping);

}  // namespace files
}  // namespace reshard
