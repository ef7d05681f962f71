// SPDX-License-Identifier: Apache-2.0
// NCCL's and CUDA's results as ours, and one rank's communicator with its stream.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"

namespace reshard::nccl {

/// Success, or `aborted` with the library's words.
Result<> to_result(ncclResult_t code, std::string_view what);
Result<> to_result(cudaError_t code, std::string_view what);

/// A communicator that never blocks, and the stream on which its messages run. Used by one thread
/// at a time, with the device of its making current.
class Link {
 public:
  /// Collective among the ranks of `control`.
  static Result<std::unique_ptr<Link>> make(ControlPlane& control, Deadline deadline);
  /// As end(false).
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  /// False while NCCL is still at what it was last given. Errors: what it found since.
  Result<bool> ready() const;

  /// Ends the communicator; afterwards NCCL touches no memory. Cleanly, within a bounded time, when
  /// all messages are done; else by ncclCommAbort(). Calling it again does nothing.
  void end(bool cleanly);

 private:
  Link() = default;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace reshard::nccl
