// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "reshard/exec/progress_meter.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/plan/moves.h"
#include "reshard/transform/copy.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// A local tensor in a peer's shared memory.
struct PeerTensor {
  const RemoteMemory* memory = nullptr;
  Index offset = 0;
};

/// Copies from peers' memory that only the transport reaches, by Transport::get(): straight into
/// the destination, thousands of runs per call. What is converted, or has runs so short that asking
/// for each would cost more than reading what lies between them too (get_costs.h), is read into a
/// piece of staging memory first.
class PeerGets {
 public:
  PeerGets() = default;

  /// `places` answers for the source of each move; what it names must outlive this. Peers are taken
  /// in turn from the one after `me` on. Staging is at most `staging_bytes`, which is 32 KiB or
  /// more. Errors: out of memory.
  static Result<PeerGets> prepare(std::span<const Move> moves,
                                  const std::function<PeerTensor(Rank, SlotId)>& places,
                                  const std::function<std::byte*(SlotId)>& target, Rank me,
                                  Index world, Index staging_bytes);

  /// Reads all, or until the meter says stop. Allocates nothing. Errors: those of get().
  Result<> run(Transport& transport, ProgressMeter& meter);
  Index staging_bytes() const { return staging_.size(); }
  bool empty() const { return parts_.empty(); }

 private:
  /// Runs of one peer's memory that go to `into`, and the copy that follows where that is staging.
  struct Part {
    const RemoteMemory* from = nullptr;
    StridedCopy fetch;
    std::byte* into = nullptr;
    bool staged = false;
    CopyTask finish;
  };
  Result<bool> fetch(Transport& transport, const Part& part, ProgressMeter& meter);
  Result<bool> flush(Transport& transport, const RemoteMemory& from, ProgressMeter& meter);

  std::vector<Part> parts_;
  std::vector<Get> batch_;
  Index batched_ = 0;  ///< bytes that the batch delivers.
  HostBuffer staging_;
};

}  // namespace reshard
