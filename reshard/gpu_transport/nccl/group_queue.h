// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/gpu_transport/nccl/communicator.h"
#include "reshard/gpu_transport/nccl/halves.h"

namespace reshard::nccl {

/// Gives halves to a communicator, group after group: several are in flight, on one stream. Host
/// memory is copied to and from the GPU on the way, through buffers of this object: each side of a
/// message chooses where its bytes are. A group with bytes in host memory is in flight alone. For
/// one thread. Groups allocate nothing, unless they stage more than any before.
class GroupQueue {
 public:
  /// Errors: memory that is short; the driver's.
  static Result<GroupQueue> make(std::unique_ptr<Communicator> communicator,
                                 std::shared_ptr<const cuda::Device> device,
                                 const GroupLimits& limits);

  /// The halves that were not given yet, oldest first; the owner appends.
  std::deque<Half>& queue() { return queue_; }
  /// Advances without waiting. True if it did. Errors: NCCL's, the driver's; only end() may follow.
  Result<bool> advance();
  /// The halves of the oldest group in flight; none: empty.
  std::span<const Half> oldest() const;
  /// The halves that advance() has completed since the last call; the caller clears them.
  std::vector<Half>& completed() { return completed_; }

  /// Ends the communicator. Afterwards nobody touches the memory of any half.
  void end(bool cleanly);

 private:
  /// A group takes NCCL some 100 us to start, in which the groups before it move.
  static constexpr std::size_t kInFlight = 4;
  struct Group {
    explicit Group(cuda::Event event) : done(std::move(event)) {}
    std::vector<Half> halves;
    cuda::Event done;                    ///< it has left the GPU.
    std::size_t sent = 0, received = 0;  ///< bytes in host memory.
    std::size_t staged() const { return sent + received; }
  };

  GroupQueue(std::unique_ptr<Communicator> communicator, std::shared_ptr<const cuda::Device> device)
      : communicator_(std::move(communicator)), device_(std::move(device)) {}

  Group& group(std::size_t number) { return groups_[(first_ + number) % kInFlight]; }
  Result<> reserve(std::size_t bytes);
  bool may_give() const;
  Result<> give();
  Result<> follow(const Group& group);
  void complete(const Group& group);
  template <class F>
  static void for_staged(const Group& group, bool sending, F&& f);

  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<const cuda::Device> device_;
  cuda::Buffer pinned_, staging_;  ///< of host memory on its way: reserved_ bytes each.
  std::size_t reserved_ = 0;
  /// Buffers that became too small. They are kept, because freeing memory waits for all kernels of
  /// the GPU, also for those of other libraries, which may wait for peers.
  std::vector<cuda::Buffer> outgrown_;
  std::deque<Half> queue_;
  std::vector<Half> completed_;
  std::vector<Operation> operations_;
  std::vector<Group> groups_;  ///< kInFlight, in a ring.
  std::size_t first_ = 0, in_flight_ = 0;
  bool is_starting_ = false;  ///< the last group in flight, which NCCL has not put on the stream.
};

}  // namespace reshard::nccl
