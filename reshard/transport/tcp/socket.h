// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard::tcp {

/// Wakes a thread that is in poll() (an eventfd). Thread-safe.
class WakeFd {
 public:
  /// Errors: `io`.
  static Result<WakeFd> make();
  /// The descriptor to poll for POLLIN.
  int fd() const { return fd_.get(); }
  void notify() const;
  void clear() const;

 private:
  explicit WakeFd(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

/// A thread with all signals blocked, so that no handler runs on it.
std::thread thread_without_signals(std::function<void()> body);

/// A timeout for poll(): from now until `time`, rounded up; -1 for never.
int milliseconds_until(std::chrono::steady_clock::time_point time,
                       std::chrono::steady_clock::time_point now);

/// A listening socket and its port.
struct Listener {
  FileDescriptor socket;
  int port = 0;
};

/// Listens at a port (0: any free one): on `host` only if that is an address of this machine, else
/// (also if empty) on all its addresses. Errors: `invalid_argument` if the host has no address;
/// `io`, where `in_use` tells whether the port is in use.
Result<Listener> listen_at(const std::string& host, int port, bool* in_use = nullptr);

/// Connects to the first address of the host that answers within `limit` and the deadline. Errors:
/// `io`.
Result<FileDescriptor> connect_to(const std::string& host, int port,
                                  std::chrono::milliseconds limit, Deadline deadline);

/// Two connected stream sockets, non-blocking. Errors: `io`.
Result<std::pair<FileDescriptor, FileDescriptor>> socket_pair();

/// Sends small messages without delay, and reports an error if the other host has not answered for
/// 20 s. No effect on sockets other than TCP.
void tune(int socket);

/// Sends (receives) exactly these bytes. Errors: `io` if closed or broken, or at the deadline.
Result<> send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);
Result<> receive_all(int socket, std::span<std::byte> bytes, Deadline deadline);

/// The addresses of this machine, loopback first.
std::vector<std::string> own_addresses();

/// Raises the limit on open files by `n`, as far as permitted.
void raise_file_limit(std::size_t n);

}  // namespace reshard::tcp
