// SPDX-License-Identifier: Apache-2.0
// For `make coverage`: a forked child of a test leaves by _exit(), which would lose what it has
// counted. This library is loaded once in a process, and its _exit() has every image write its own
// counters first.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "cmake/coverage/exit.h"

namespace {
std::array<void (*)(), 64> g_dumps{};
}  // namespace

void reshard_coverage_add(void (*dump)()) {
  const auto free = std::ranges::find(g_dumps, nullptr);
  if (free != g_dumps.end()) *free = dump;
}

void reshard_coverage_remove(void (*dump)()) { std::ranges::replace(g_dumps, dump, nullptr); }

extern "C" [[noreturn]] void _exit(int status) {
  for (void (*dump)() : g_dumps)
    if (dump != nullptr) dump();
  for (;;) ::syscall(SYS_exit_group, status);
}
