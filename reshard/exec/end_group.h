// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "reshard/transport/control.h"

namespace reshard {

/// How long a failed rank waits until peers no longer access its memory.
inline constexpr std::chrono::seconds kQuiesceTimeout{2};

/// Aborts the group with this error. Returns the error once no peer accesses this rank's memory any
/// more; after kQuiesceTimeout it returns anyway, and the error says that the memory may still be
/// in use. Every rank calls it once.
inline tl::unexpected<Error> end_group(ControlPlane& control, Error error) {
  control.abort(error.message);
  if (const auto left = control.quiesce(Deadline::after(kQuiesceTimeout)); !left)
    error.message += "; and its memory may still be in use: " + left.error().message;
  return tl::unexpected(std::move(error));
}

}  // namespace reshard
