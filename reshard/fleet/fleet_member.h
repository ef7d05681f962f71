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
  /// ControlConnection::connect(); `invalid_argument` if the server refuses, which it says why.
  static Result<std::unique_ptr<FleetMember>> join(
      const ControlAddress& address, JoinRequest request, Deadline deadline,
      const std::function<std::string()>& gives_up = nullptr);
  virtual ~FleetMember() = default;

  /// Errors of these: `aborted` if the connection has ended; join again.
  virtual Result<> ready() = 0;
  virtual Result<> publish(std::int64_t version, int engines) = 0;
  virtual Result<> report(std::int64_t round, bool has, std::int64_t keeps,
                          const std::string& error) = 0;
  /// An order, a confirmation, or a release or reject; none at the deadline. A cancelled order that
  /// was not begun is not returned, but reported. Errors: `aborted` if the connection has ended, or
  /// cancel() was called.
  virtual Result<std::optional<Action>> next(Deadline deadline) = 0;
  /// Makes the group of an order. Errors: those of join_group(); `aborted` if the server cancels
  /// the round.
  virtual Result<ProcessGroup> make_group(const Action& order, std::string_view transport,
                                          const TransportOptions& options) = 0;
  virtual void cancel() = 0;
};

}  // namespace reshard::fleet
