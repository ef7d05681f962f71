// SPDX-License-Identifier: Apache-2.0
#include "cli/test_stop.h"

#include <atomic>
#include <csignal>
#include <cstdlib>

namespace reshard::cli {

void stop_for_test(std::string_view point) {
  static const char* const wanted = std::getenv("RESHARD_TEST_STOP");
  static std::atomic<bool> stopped = false;
  if (wanted != nullptr && point == wanted && !stopped.exchange(true)) std::raise(SIGSTOP);
}

}  // namespace reshard::cli
