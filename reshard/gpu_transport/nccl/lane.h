// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/gpu_transport/nccl/communicator.h"
#include "reshard/gpu_transport/nccl/groups.h"

namespace reshard::nccl {

/// Gives the halves of one direction to a communicator, group after group: the next once the last
/// has left the GPU, so that no kernel of NCCL stands behind another in a queue of the hardware.
/// Host memory is copied to and from the GPU on the way, through memory that this object owns: both
/// sides of a message may choose where it is. For one thread. A group allocates nothing.
class MessageLane {
 public:
  /// Errors: memory that is short; the driver's.
  static Result<MessageLane> make(std::unique_ptr<Communicator> communicator,
                                  std::shared_ptr<const cuda::Device> device, int size,
                                  const GroupLimits& limits);

  /// The halves that were not given yet, oldest first; the owner appends.
  std::deque<Half>& queue() { return queue_; }
  /// Advances without waiting. True if it did. Errors: NCCL's, the driver's; only end() may follow.
  Result<bool> advance();
  /// The halves of the last group, while that is not over.
  const std::vector<Half>& group() const { return group_; }
  /// The halves that advance() has completed since the last call; the caller clears them.
  std::vector<Half>& completed() { return completed_; }

  Communicator& communicator() { return *communicator_; }
  /// Ends the communicator. Afterwards nobody touches the memory of any half.
  void end(bool cleanly);

 private:
  enum class State : std::uint8_t { idle, given, running };

  MessageLane(std::unique_ptr<Communicator> communicator, cuda::Event done, int size,
              const GroupLimits& limits)
      : communicator_(std::move(communicator)),
        done_(std::move(done)),
        connected_(static_cast<std::size_t>(size)),
        limits_(limits) {}

  Result<> give();
  Result<> follow();
  void complete();
  template <class F>
  void for_staged(bool sending, F&& f) const;

  std::unique_ptr<Communicator> communicator_;
  cuda::Event done_;  ///< the group has left the GPU.
  std::vector<bool> connected_;
  GroupLimits limits_;
  cuda::Buffer pinned_, staging_;  ///< limits.host_bytes each: of host memory on its way.
  std::deque<Half> queue_;
  std::vector<Half> group_, completed_;
  std::vector<Operation> operations_;
  std::size_t sent_bytes_ = 0, received_bytes_ = 0;  ///< of the group, in host memory.
  State state_ = State::idle;
};

}  // namespace reshard::nccl
