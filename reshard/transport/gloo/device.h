// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/transport/device.h>
#include <signal.h>

#include <memory>
#include <string>

#include "reshard/base/result.h"

namespace reshard::gloo {

/// Blocks signals on this thread while it lives: all of them around the start of threads, which
/// must not run the program's handlers; SIGPIPE while the library writes to sockets, because it
/// does not set MSG_NOSIGNAL. Discards a SIGPIPE that arrives meanwhile.
class SignalsBlocked {
 public:
  enum class Which { all, pipe };
  explicit SignalsBlocked(Which which);
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
  bool pending_ = false;
};

/// Makes the TCP device of the library, which has a thread. `interface` is a name or address; if
/// empty, loopback if all ranks are on one host, else the first address that is not loopback.
/// Errors: `invalid_argument` if the interface does not exist or is down; errors of the library.
Result<std::shared_ptr<::gloo::transport::Device>> make_device(const std::string& interface,
                                                               bool one_host);

}  // namespace reshard::gloo
