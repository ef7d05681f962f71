// SPDX-License-Identifier: Apache-2.0
// A stand-in for NCCL on the emulated GPU, for ranks that are threads of one process. It keeps what
// NCCL documents and, where its source is stricter, what that does (2.30, enqueue.cc and init.cc):
// non-blocking communicators that join and accept groups after some polls; messages between two
// ranks that match by order; groups that run one after another on their stream; in a group, batches
// one after another: of all first messages to peers before all second ones, and of these by the
// rounds of NCCL's schedule, eight rounds a batch; new peers of a group that must all have arrived
// before it begins; messages of different sizes, and lone ones, that hang until the communicator is
// aborted. It is stricter than NCCL where that has many channels, and buffers that take the first
// bytes of a message before the receiver is there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "reshard/gpu_transport/nccl/library.h"

namespace reshard::nccl {

/// The settings and counts of the model. Set them while no rank runs.
struct NcclModel {
  /// Forgets settings and counts.
  void reset();

  static constexpr int kNever = 1 << 30;
  int polls_to_join = 1, polls_to_accept = 1;
  int ranks_per_host = 0;  ///< divides the ranks of a group; 0: all are on one host.
  std::uint64_t seed = 0;  ///< not 0: the polls to accept a group are 0 to 3, at random.
  /// The result of the next call of a function by a rank; used once.
  std::map<std::pair<int, std::string>, int> faults;
  /// For each rank, the error that its communicators report, once, when they run a group.
  std::map<int, int> async_errors;
  std::map<std::string, int> calls;
  std::size_t largest_message = 0;  ///< bytes.
  int largest_group = 0;            ///< messages.
  /// Communicators that were not given back.
  int num_open() const;
};

NcclModel& nccl_model();
/// The functions.
const Nccl& model_nccl();

}  // namespace reshard::nccl
