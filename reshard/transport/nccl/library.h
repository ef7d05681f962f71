// SPDX-License-Identifier: Apache-2.0
// Results of NCCL and CUDA calls as Result, and the communicator and stream of a rank.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"

namespace reshard::nccl {

/// Success, or `aborted` with the message of the library.
Result<> to_result(ncclResult_t code, std::string_view what);
Result<> to_result(cudaError_t code, std::string_view what);

/// A non-blocking communicator and the stream of its messages. Used by one thread at a time, with
/// the device current that was current in make().
class Link {
 public:
  /// Collective among the ranks of `control`.
  static Result<std::unique_ptr<Link>> make(ControlPlane& control, Deadline deadline);
  /// Calls end(false).
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  /// False while NCCL is processing the last operation. Errors: asynchronous errors of NCCL.
  Result<bool> ready() const;

  /// Ends the communicator within a bounded time; afterwards NCCL touches no memory. If not
  /// `cleanly` (messages are outstanding), or if finalizing fails, uses ncclCommAbort().
  /// Idempotent.
  void end(bool cleanly);

 private:
  Link() = default;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace reshard::nccl
