// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/rendezvous.h"

namespace reshard {

/// The number of a connection to a ControlServer; never used again for another one.
using ConnectionId = std::int64_t;

/// Largest message. Bytes.
inline constexpr std::size_t kMaxControlMessageBytes = std::size_t{16} << 20;

/// The address of a ControlServer.
struct ControlAddress {
  /// tcp:// or file://, as for RendezvousOptions; port 0 of a tcp:// URL of a server: any free one.
  std::string url;
  std::string job = "reshard";  ///< as for RendezvousOptions.
  Secret secret;                ///< as for RendezvousOptions.
};

/// Serves processes that come and go: each has a connection, over which both ends send messages, in
/// order, encrypted and authenticated with the secret as the control plane of a group is. The end
/// of a process closes its connection; a host that fails is noticed within 25 s.
///
/// Everything happens in a thread of the server's, which also calls the functions below. They must
/// not wait.
class ControlServer {
 public:
  using Clock = std::chrono::steady_clock;
  struct Callbacks {
    /// A connection has sent a message. The first one tells of the connection.
    std::function<void(ConnectionId, std::span<const std::byte>)> received;
    /// A connection that has sent a message has ended, and not by close().
    std::function<void(ConnectionId)> lost;
    /// When `wake` is to be called; asked after each call of the others.
    std::function<std::optional<Clock::time_point>()> next_wake;
    std::function<void()> wake;
  };

  /// Errors: `invalid_argument` for an invalid URL, job or callbacks, a tcp:// URL without a
  /// secret, or an address that has another server; `io`.
  static Result<std::unique_ptr<ControlServer>> serve(const ControlAddress& address,
                                                      Callbacks callbacks);
  virtual ~ControlServer() = default;

  /// The URL at which it is reached: that of serve(), with the port.
  virtual const std::string& url() const = 0;
  /// Sends a message; nothing for a connection that has ended. In a callback only.
  virtual void send(ConnectionId to, std::span<const std::byte> message) = 0;
  /// Closes a connection, once what was sent has left. In a callback only.
  virtual void close(ConnectionId connection) = 0;
};

/// A process's end of a connection to a ControlServer. One thread at a time, cancel() from any.
class ControlConnection {
 public:
  /// Tries until the deadline. Errors: `deadline` if nobody serves there; `invalid_argument` as for
  /// serve(); `aborted` if the secret is wrong, or `gives_up`, called several times a second,
  /// returns a reason.
  static Result<std::unique_ptr<ControlConnection>> connect(
      const ControlAddress& address, Deadline deadline,
      const std::function<std::string()>& gives_up = nullptr);
  virtual ~ControlConnection() = default;

  /// Errors: `aborted` if the connection has ended; `deadline` if the server takes nothing.
  virtual Result<> send(std::span<const std::byte> message, Deadline deadline) = 0;
  /// The next message; none at the deadline. Errors: `aborted` if the connection has ended, or was
  /// cancelled.
  virtual Result<std::optional<std::vector<std::byte>>> receive(Deadline deadline) = 0;
  /// Ends the waits of this object, now and later.
  virtual void cancel() = 0;
  /// The address of this host from which the server was reached.
  virtual const std::string& local_host() const = 0;
  /// The secret of the server: that of connect(), or of the file.
  virtual const Secret& secret() const = 0;
};

}  // namespace reshard
