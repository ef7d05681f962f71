// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "reshard/transport/control.h"

namespace reshard {

/// How long a rank that failed waits for its peers to leave its memory.
inline constexpr std::chrono::seconds kLeave{2};

/// Ends the group for everybody with this error, and returns it once no peer is in this rank's
/// memory any more (at most kLeave later; if not, it says so). Every rank does it once.
inline tl::unexpected<Error> end_group(ControlPlane& control, Error error) {
  control.abort(error.message);
  if (const auto left = control.quiesce(Deadline::after(kLeave)); !left)
    error.message += "; and its memory may still be in use: " + left.error().message;
  return tl::unexpected(std::move(error));
}

}  // namespace reshard
