// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/transport/device.h>
#include <signal.h>

#include <memory>
#include <string>

#include "reshard/base/result.h"

namespace reshard::gloo {

/// Blocks signals on this thread as long as it lives: all of them while threads are started that
/// must not run a program's handlers, or SIGPIPE while the library writes to sockets, which it does
/// without MSG_NOSIGNAL. A SIGPIPE of its time is swallowed.
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

/// The library's TCP device, with its thread. `interface`: name or address; empty: loopback where
/// all ranks are on one host, else the first address that other hosts may know. Errors:
/// `invalid_argument` for an interface that is not there or not up; what the library says.
Result<std::shared_ptr<::gloo::transport::Device>> make_device(const std::string& interface,
                                                               bool one_host);

}  // namespace reshard::gloo
