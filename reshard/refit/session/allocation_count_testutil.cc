// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session/allocation_count_testutil.h"

#include <execinfo.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <new>

namespace {

// What operator new uses needs no constructor: it is called before any has run.
constinit std::atomic<std::int64_t> calls{0};
constinit std::atomic<int> living{0};
constinit thread_local std::int64_t calls_here = 0;
constinit thread_local bool tracing = false;

void trace() {
  if (living.load(std::memory_order_relaxed) == 0 || tracing) return;
  tracing = true;
  if (std::getenv("RESHARD_TRACE_ALLOCATIONS") != nullptr) {
    void* frames[16];
    backtrace_symbols_fd(frames, backtrace(frames, 16), STDERR_FILENO);
    (void)!write(STDERR_FILENO, "\n", 1);
  }
  tracing = false;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  calls.fetch_add(1, std::memory_order_relaxed);
  ++calls_here;
  trace();
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment = 0) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 0); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes, 0);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace reshard {

CountAllocations::CountAllocations() {
  living.fetch_add(1);
  here_ = calls_here;
  everywhere_ = calls.load();
}
CountAllocations::~CountAllocations() { living.fetch_sub(1); }

std::int64_t CountAllocations::here() const { return calls_here - here_; }
std::int64_t CountAllocations::everywhere() const { return calls.load() - everywhere_; }

int many_refits() { return std::getenv("RESHARD_SLOW_TESTS") != nullptr ? 1000 : 100; }

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace reshard
