// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "reshard/cuda/fingerprints/fingerprint_table.h"
#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"

namespace reshard::cuda {

/// Computes the sums of a table on a GPU: one launch, whatever the number of tensors. Only the
/// sums, 16 bytes each, come to the host. Its tables stay on the device: made once, run repeatedly.
class FingerprintRunner {
 public:
  /// Copies the table to the device and waits for that. `most_blocks`: the thread blocks that run
  /// at a time, each of kTileThreads; 0: as many as the device holds. Errors: those of
  /// Device::kernel(); memory that is short. @pre table.end() was called after the last add()
  static Result<FingerprintRunner> make(const std::shared_ptr<const Device>& device,
                                        const FingerprintTable& table, int most_blocks = 0);

  /// Gives a stream of the device all work, after which sums() has what the memory holds at that
  /// point of the stream. Neither waits nor allocates, so that it can be captured in a CUDA graph.
  /// The stream must run the work before this object goes, and before another stream gets work of
  /// it. Errors: the driver's.
  Result<> launch(const Stream& stream) const;
  /// The sums, by number, in pinned memory of this object, once the stream has run the work.
  std::span<const Fingerprint> sums() const;

 private:
  Function kernel_ = nullptr;
  Buffer tables_, sums_, host_sums_;
  FingerprintLaunch launch_;
  unsigned blocks_ = 0;
};

}  // namespace reshard::cuda
