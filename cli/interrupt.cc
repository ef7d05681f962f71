// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <string_view>

namespace reshard::cli {
namespace {

std::atomic<int> came = 0;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_interrupt(int signal) { came = signal; }

}  // namespace

void catch_interrupts() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() { return came != 0; }

Error interruption() {
  const int signal = came;
  if (signal == SIGINT) return {Code::aborted, "interrupted"};
  return {Code::aborted, fmt::format("interrupted by signal {} ({})", signal, ::strsignal(signal))};
}

Error as_interrupted(Error error) {
  constexpr std::string_view kCancelled = "cancelled";
  if (interrupted() && error.message.starts_with(kCancelled))
    error.message.replace(0, kCancelled.size(), "interrupted");
  return error;
}

void note_interrupt(int signal) { came = signal; }

}  // namespace reshard::cli
