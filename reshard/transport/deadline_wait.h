// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <mutex>

#include "reshard/transport/deadline.h"

namespace reshard {

/// Waits until `over()` is true or the deadline passes. Returns over(). `lock` is held when `over`
/// is called and on return.
template <class Predicate>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                Deadline deadline, Predicate over) {
  if (!deadline.is_never()) return changed.wait_until(lock, deadline.time(), over);
  changed.wait(lock, over);
  return true;
}

}  // namespace reshard
