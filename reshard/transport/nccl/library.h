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

namespace reshard {

/// Success, or `aborted` with the library's words.
Result<> nccl_result(ncclResult_t code, std::string_view what);
Result<> cuda_result(cudaError_t code, std::string_view what);

/// A communicator that never blocks, and the stream on which its messages run. Used by one thread
/// at a time, with the device of its making current.
class NcclLink {
 public:
  /// Collective among the ranks of `control`.
  static Result<std::unique_ptr<NcclLink>> make(ControlPlane& control, Deadline deadline);
  /// As end(false).
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

  /// False while NCCL is still at what it was last given. Errors: what it found since.
  Result<bool> ready() const;

  /// Ends the communicator; afterwards NCCL touches no memory. Cleanly, within a bounded time, when
  /// all messages are done; else by ncclCommAbort(). Calling it again does nothing.
  void end(bool cleanly);

 private:
  NcclLink() = default;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace reshard
