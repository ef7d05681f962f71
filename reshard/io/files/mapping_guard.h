// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

/// A read of a mapped file beyond its end, which another process has cut meanwhile, or of a page
/// that the disk cannot give, raises SIGBUS. Under the guard the reader goes on instead: the rest
/// of the mapping becomes zeros and is marked as lost. Whoever reads mapped files asks
/// MappedFile::unchanged() before the result counts. Reads cost what they cost without it.
namespace reshard {

/// Takes SIGBUS in mappings of this process's MappedFiles, those that are open and those to come,
/// in all threads. For programs, not for libraries: SIGBUS elsewhere goes to the handler that was
/// there before. Call it again after a library that may have put its own handler in place.
void guard_mappings();

/// Whether any mapping was lost since the process began. From any thread.
bool any_mapping_lost();

namespace files {

/// A mapping as the handler of the signal sees it. Never freed: another mapping takes it over.
struct GuardedMapping {
  std::atomic<std::uintptr_t> begin = 0;  ///< 0: free.
  std::atomic<std::uintptr_t> end = 0;
  std::atomic<bool> lost = false;
  GuardedMapping* next = nullptr;
};

/// Enters a mapping; leave() before it is unmapped.
GuardedMapping* enter_mapping(const void* data, std::size_t size);
void leave_mapping(GuardedMapping* mapping);

}  // namespace files
}  // namespace reshard
