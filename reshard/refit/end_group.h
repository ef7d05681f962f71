// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "reshard/transport/control.h"

namespace reshard {

/// Ends the group for everybody with this error, and returns it once no peer is in this rank's
/// memory any more (at most five seconds later; if not, it says so). Every rank does it once.
inline tl::unexpected<Error> end_group(ControlPlane& control, Error error) {
  control.abort(error.message);
  if (const auto left = control.quiesce(Deadline::after(std::chrono::seconds(5))); !left)
    error.message += "; and its memory may still be in use: " + left.error().message;
  return tl::unexpected(std::move(error));
}

/// True for what a proof found, on every rank alike; the group goes on.
inline bool is_verdict(const ControlPlane& control, const Error& error) {
  return error.code == Code::corrupt && control.status().has_value();
}

}  // namespace reshard
