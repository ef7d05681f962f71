// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "reshard/base/file_descriptor.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard::tcp {

/// Wakes a thread that is in poll(), from any thread.
class Bell {
 public:
  /// Errors: `io`.
  static Result<Bell> make();
  /// To be polled for POLLIN.
  int fd() const { return fd_.get(); }
  void ring() const;
  void silence() const;

 private:
  explicit Bell(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

/// A thread that no signal handler interrupts.
std::thread thread_without_signals(std::function<void()> body);

/// For poll(): from now until `time`, rounded up; -1 for never.
int milliseconds_until(std::chrono::steady_clock::time_point time,
                       std::chrono::steady_clock::time_point now);

/// A listening socket and its port.
struct Listener {
  FileDescriptor socket;
  int port = 0;
};

/// Listens at a port (0: any that is free). On `host` alone when that is an address of this
/// machine, on all its addresses otherwise or when it is empty. Errors: `invalid_argument` for a
/// host that has no address; `io`, with EADDRINUSE told apart by `in_use`.
Result<Listener> listen_at(const std::string& host, int port, bool* in_use = nullptr);

/// Connects within `limit` and the deadline, trying all addresses of the host. Errors: `io`.
Result<FileDescriptor> connect_to(const std::string& host, int port,
                                  std::chrono::milliseconds limit, Deadline deadline);

/// Two ends connected to each other. Errors: `io`.
Result<std::pair<FileDescriptor, FileDescriptor>> socket_pair();

/// No delay of small messages, and an error when the other host has not answered for 20 s. Without
/// effect on sockets that are not TCP's.
void tune(int socket);

/// Sends (receives) exactly these bytes. Errors: `io`: closed, broken, deadline.
Result<> send_all(int socket, std::span<const std::byte> bytes, Deadline deadline);
Result<> receive_all(int socket, std::span<std::byte> bytes, Deadline deadline);

/// Addresses of this machine that others may reach, loopback ones first.
std::vector<std::string> own_addresses();

/// Lets this process open at least `n` files more, as far as it may.
void make_room_for_files(std::size_t n);

}  // namespace reshard::tcp
