// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/fleet/fleet_state.h"
#include "reshard/transport/control_server.h"
#include "reshard/transport/group.h"

namespace reshard::fleet {

/// A process's end of a fleet: it tells the server of itself, and receives what FleetState decides.
/// One thread at a time, cancel() from any.
///
/// An engine's member calls ready() and then next() until it is confirmed; a trainer's publish()
/// and then next() until it is released. On an order it makes the group, refits, and calls
/// report().
class FleetMember {
 public:
  /// Joins as `request` says; its `address` is set here. Errors: those of
  /// ControlConnection::connect(); `invalid_argument` if the server refuses, with its reason.
  static Result<std::unique_ptr<FleetMember>> join(
      const ControlAddress& address, JoinRequest request, Deadline deadline,
      const std::function<std::string()>& gives_up = nullptr);
  virtual ~FleetMember() = default;

  /// Errors of these: `aborted` if the connection has ended; join again.
  virtual Result<> ready() = 0;
  virtual Result<> publish(std::int64_t version, int engines) = 0;
  virtual Result<> report(std::int64_t round, bool has, std::int64_t keeps,
                          const std::string& error) = 0;
  /// The next order, confirmation, release or rejection; none at the deadline. Cancellations of
  /// rounds that this member has reported are left out. Errors: `aborted` if the connection has
  /// ended, the server dropped this member, or cancel() was called.
  virtual Result<std::optional<Action>> next(Deadline deadline) = 0;
  /// Makes the group of an order. Errors: those of join_group(); `aborted` if the server cancels
  /// the round.
  virtual Result<ProcessGroup> make_group(const Action& order, std::string_view transport,
                                          const TransportOptions& options) = 0;
  /// Ends the waits of this object, now and later.
  virtual void cancel() = 0;
};

}  // namespace reshard::fleet
