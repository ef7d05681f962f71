// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/allocation_count_testutil.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>

namespace {

std::atomic<std::int64_t> count{0};

void* allocate_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  ++count;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  return alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__ ? std::malloc(bytes == 0 ? 1 : bytes)
                                                       : std::aligned_alloc(alignment, rounded);
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  void* at = allocate_or_null(bytes, alignment);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, 1);
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

namespace reshard {

std::int64_t allocations() { return count; }

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace reshard
