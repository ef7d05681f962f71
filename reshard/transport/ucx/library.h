// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::ucx {

/// "UCX 1.13.1", of the library that is loaded.
std::string library_version();

/// An error of a call of the library: "ucx: <what>: <its text>".
Error library_error(std::string_view what, ucs_status_t status);

/// Keeps the library from writing to the terminal and from handling the signals of a program that
/// is not its own; not where the user asked for it with UCX_LOG_LEVEL or UCX_HANDLE_ERRORS.
void make_quiet();

/// A context and one worker, used by one thread at a time. UCX_* variables of the environment
/// count.
class Worker {
 public:
  /// `device`: network interface, or empty for all. Errors: what the library says;
  /// `invalid_argument` for a device that it does not have.
  static Result<std::unique_ptr<Worker>> make(const std::string& device);
  /// For ranks that are all on this host: listens on loopback alone, as far as the library can work
  /// that way and unless UCX_NET_DEVICES names devices. Errors: as above.
  static Result<std::unique_ptr<Worker>> make_on_host();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_context_h context() const { return context_; }
  ucp_worker_h handle() const { return worker_; }

  /// By which peers reach it.
  Result<std::vector<std::byte>> address() const;
  /// An endpoint to a peer; `on_error(arg, ...)` is called from progress when it fails.
  Result<ucp_ep_h> connect(std::span<const std::byte> address, ucp_err_handler_cb_t on_error,
                           void* arg) const;
  /// Moves what can move; true when anything did.
  bool progress() const { return ucp_worker_progress(worker_) != 0; }
  /// Sleeps until there may be something to move, at most this long.
  void sleep(std::chrono::nanoseconds at_most) const;

 private:
  Worker() = default;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
};

}  // namespace reshard::ucx
