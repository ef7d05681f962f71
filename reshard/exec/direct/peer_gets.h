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

namespace reshard::direct {

/// A local tensor in a peer's shared memory.
struct PeerTensor {
  const RemoteMemory* memory = nullptr;
  Index offset = 0;
};

/// Copies from peers' memory that only the transport reaches, by Transport::get(): straight into
/// the destination, thousands of runs per call. Values to convert are read into staging memory
/// first; so are runs so short that reading the gaps between them too is cheaper (get_costs.h).
class PeerGets {
 public:
  PeerGets() = default;

  /// `places` returns the source tensor of each move; the memory it names must outlive this object.
  /// Peers are read in turn, starting after `me`. Uses at most `staging_bytes` (at least 32 KiB) of
  /// staging. Errors: out of memory.
  static Result<PeerGets> prepare(std::span<const Move> moves,
                                  const std::function<PeerTensor(Rank, SlotId)>& places,
                                  const std::function<std::byte*(SlotId)>& target, Rank me,
                                  Index world, Index staging_bytes);

  /// Reads everything, or until the meter says stop. Allocates nothing. Errors: those of get().
  Result<> run(Transport& transport, ProgressMeter& meter);
  Index staging_bytes() const { return staging_.size(); }
  bool empty() const { return parts_.empty(); }

 private:
  /// Runs of one peer's memory that are read to `into`, and the copy that follows if that is
  /// staging.
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
  Index batched_ = 0;  ///< bytes in the batch.
  HostBuffer staging_;
};

}  // namespace reshard::direct
