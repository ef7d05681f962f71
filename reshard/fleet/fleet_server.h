// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/base/result.h"
#include "reshard/fleet/fleet_state.h"
#include "reshard/transport/control_server.h"

namespace reshard::fleet {

/// Serves a fleet from a thread of its own: FleetState behind a ControlServer. In the process of
/// the trainer's rank 0 or one of its own. When it ends, members keep what they hold, and join the
/// next server at its address.
class FleetServer {
 public:
  /// Errors: those of ControlServer::serve(); a job of more than kMaxJob characters.
  static Result<std::unique_ptr<FleetServer>> serve(const ControlAddress& address,
                                                    const Limits& limits = {});
  virtual ~FleetServer() = default;

  /// As ControlServer::url().
  virtual const std::string& url() const = 0;
  /// FleetState::text(). Any thread.
  virtual std::string text() const = 0;
};
/// The most characters of the job of a fleet: the names of its groups append numbers to it.
inline constexpr std::size_t kMaxJob = 32;

}  // namespace reshard::fleet
