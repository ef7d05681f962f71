// SPDX-License-Identifier: Apache-2.0
// The handler walks a list without locks: mappings are pushed to its front and never removed. It
// calls mmap, which POSIX does not list as safe in handlers but which is a plain system call here.
#include "reshard/io/files/mapping_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>

namespace reshard {
namespace {

using files::GuardedMapping;

std::atomic<GuardedMapping*> guarded_mappings = nullptr;
std::atomic<bool> any_lost = false;
std::mutex mutex;  // of those who enter, leave and guard
struct sigaction previous{};
std::uintptr_t page_bytes = 4096;
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free);

/// Replaces the mapping by zeros from the page at `at` to its end.
bool give_up(GuardedMapping& mapping, std::uintptr_t at, std::uintptr_t end) {
  const std::uintptr_t begin = at / page_bytes * page_bytes;
  void* const zeros =
      ::mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ,  // NOLINT: an address
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) return false;
  mapping.lost = true;
  any_lost = true;
  return true;
}

extern "C" void on_bus_error(int, siginfo_t* signal, void*) {
  const int error = errno;
  const auto at = reinterpret_cast<std::uintptr_t>(signal->si_addr);
  bool ours = false;
  for (GuardedMapping* m = guarded_mappings; m != nullptr && !ours; m = m->next) {
    const std::uintptr_t begin = m->begin, end = m->end;
    ours = begin != 0 && at >= begin && at < end && give_up(*m, at, end);
  }
  // Not ours: the failed instruction runs again under the previous handler.
  if (!ours) ::sigaction(SIGBUS, &previous, nullptr);
  errno = error;
}

}  // namespace

void guard_mappings() {
  const std::lock_guard lock(mutex);
  struct sigaction now{};
  if (::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
      now.sa_sigaction == on_bus_error)
    return;
  page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  previous = now;
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(SIGBUS, &action, nullptr);
}

bool any_mapping_lost() { return any_lost; }

namespace files {

GuardedMapping* enter_mapping(const void* data, std::size_t size) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(mutex);
  GuardedMapping* entry = guarded_mappings;
  while (entry != nullptr && entry->begin != 0) entry = entry->next;
  if (entry == nullptr) {
    entry = new GuardedMapping;
    entry->next = guarded_mappings;
    guarded_mappings = entry;
  }
  entry->lost = false;
  entry->end = begin + size;
  entry->begin = begin;
  return entry;
}

void leave_mapping(GuardedMapping* mapping) { mapping->begin = 0; }

}  // namespace files
}  // namespace reshard
