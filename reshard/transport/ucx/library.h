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

/// The version of the loaded library: "UCX 1.13.1".
std::string library_version();

/// An error of a library call: "ucx: <what>: <message of the library>".
Error library_error(std::string_view what, ucs_status_t status);

/// Keeps the library from writing to the terminal and from handling the program's signals, unless
/// the user has set UCX_LOG_LEVEL or UCX_HANDLE_ERRORS.
void make_quiet();

/// A context and one worker. Used by one thread at a time. Respects the UCX_* environment
/// variables.
class Worker {
 public:
  /// `device` is a network interface, or "" for all. Errors: those of the library;
  /// `invalid_argument` for an unknown device.
  static Result<std::unique_ptr<Worker>> make(const std::string& device);
  /// For ranks that are all on this host: listens on loopback only, if the library supports it and
  /// UCX_NET_DEVICES is not set. Errors: as make().
  static Result<std::unique_ptr<Worker>> make_on_host();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_context_h context() const { return context_; }
  ucp_worker_h handle() const { return worker_; }
  /// True if messages may be in CUDA memory: the library was built for it, finds a GPU, and its
  /// variables (UCX_TLS) do not leave it out.
  bool takes_gpu_memory() const;

  /// The address by which peers connect to it.
  Result<std::vector<std::byte>> address() const;
  /// An endpoint to a peer. progress() calls `on_error(arg, ...)` if it fails.
  Result<ucp_ep_h> connect(std::span<const std::byte> address, ucp_err_handler_cb_t on_error,
                           void* arg) const;
  /// Makes progress; true if anything moved.
  bool progress() const { return ucp_worker_progress(worker_) != 0; }
  /// Sleeps until progress may be possible, at most this long.
  void sleep(std::chrono::nanoseconds at_most) const;

 private:
  Worker() = default;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
};

}  // namespace reshard::ucx
