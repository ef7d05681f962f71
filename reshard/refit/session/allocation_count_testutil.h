// SPDX-License-Identifier: Apache-2.0
// Counts calls of operator new, for tests of what must not allocate. It replaces operator new in
// every program that uses it.
#pragma once

#include <cstdint>

namespace reshard {

/// Counts allocations since its construction. With RESHARD_TRACE_ALLOCATIONS set, every allocation
/// while one exists prints its call stack (addresses for addr2line).
class CountAllocations {
 public:
  CountAllocations();
  ~CountAllocations();
  CountAllocations(const CountAllocations&) = delete;
  CountAllocations& operator=(const CountAllocations&) = delete;

  /// Calls by the thread that made it. @pre called by that thread
  std::int64_t here() const;
  /// Calls by all threads of the process.
  std::int64_t everywhere() const;

 private:
  std::int64_t here_, everywhere_;
};

/// Bytes of memory that this process has in use.
std::int64_t resident_bytes();

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// The allowed growth of resident_bytes() where nothing grows: freed memory that a sanitizer
/// keeps, and its shadow of all memory.
inline constexpr std::int64_t kHeapPlay = std::int64_t{320} << 20;
#else
/// The allowed growth of resident_bytes() where nothing grows: pages that a thread's arena touches
/// when calls come in another order.
inline constexpr std::int64_t kHeapPlay = std::int64_t{512} << 10;
#endif

/// The number of refits in a test that memory does not grow: 1000 with RESHARD_SLOW_TESTS=1, else
/// 100.
int many_refits();

}  // namespace reshard
