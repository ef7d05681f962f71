// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace reshard::cli {
namespace {

std::atomic<bool> came = false;
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int) { came = true; }

}  // namespace

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return came; }

void note_interrupt() { came = true; }

}  // namespace reshard::cli
