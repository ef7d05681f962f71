// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "reshard/cuda/stream.h"
#include "reshard/gpu_transport/nccl/library.h"
#include "reshard/transport/control.h"

namespace reshard::nccl {

/// A message as NCCL gets it: bytes in the memory of the GPU.
struct Operation {
  bool sending = false;
  int peer = 0;
  std::byte* bytes = nullptr;
  std::size_t size = 0;
};

/// A non-blocking communicator and the stream on which its groups run. Used by one thread at a
/// time, as NCCL's groups belong to a thread.
class Communicator {
 public:
  /// Collective: the ranks of `control` have the same id, from ncclGetUniqueId() on one of them.
  /// Errors: `deadline`; an abort of the group; NCCL's.
  static Result<std::unique_ptr<Communicator>> make(const Nccl& nccl,
                                                    std::shared_ptr<const cuda::Device> device,
                                                    const UniqueId& id, ControlPlane& control,
                                                    Deadline deadline);
  /// Calls end(false).
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const cuda::Stream& stream() const { return stream_; }

  /// True once NCCL has accepted the last group: its work is on the stream then. Errors: NCCL's,
  /// also those of running messages.
  Result<bool> is_ready() const;

  /// Gives NCCL a group. The memory is in use until the stream has run it, or end() has returned.
  /// @pre is_ready()
  Result<> give(std::span<const Operation> group) const;

  /// Ends the communicator; afterwards NCCL touches no memory. If not `cleanly` (messages may be
  /// outstanding), or if NCCL does not end cleanly in time, by ncclCommAbort(). Idempotent.
  void end(bool cleanly);

 private:
  Communicator(const Nccl& nccl, cuda::Stream stream) : nccl_(nccl), stream_(std::move(stream)) {}

  /// Calls f() in the context of the device; f returns an ncclResult_t.
  template <class F>
  Result<> call(const char* what, F&& f) const;
  bool finalize() const;

  const Nccl& nccl_;
  cuda::Stream stream_;
  Comm comm_ = nullptr;
};

}  // namespace reshard::nccl
