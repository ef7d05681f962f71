// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "reshard/base/file.h"
#include "reshard/base/result.h"

namespace reshard {

/// A TCP socket that listens at a free port of all addresses of this host, for
/// RendezvousOptions::listener.
class ListeningSocket {
 public:
  /// Errors: `io`.
  static Result<ListeningSocket> make();
  int fd() const { return socket_.get(); }
  int port() const { return port_; }

 private:
  ListeningSocket(FileDescriptor socket, int port) : socket_(std::move(socket)), port_(port) {}
  FileDescriptor socket_;
  int port_;
};

}  // namespace reshard
