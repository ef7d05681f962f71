// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reshard/cuda/fingerprints/fingerprint_runner.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/program/converted/converted_rows.h"

namespace reshard::conversion {

/// Digests of parts of local tensors, to tell whether their bytes change. Of what is in the memory
/// of a GPU the sums alone come to the host. For one thread.
class TargetDigests {
 public:
  /// `parts` of rank `me` in `memory`, which must outlive this object.
  TargetDigests(const RankBuffers& memory, Rank me, std::vector<PartRows> parts)
      : memory_(&memory), me_(me), parts_(std::move(parts)) {
    for (PartRows& part : parts_)
      if (part.row == part.stride) part.row = part.stride = part.bytes;
  }

  /// The digest of each of `parts`, in order, after the work already queued on the memory's stream.
  /// Blocks. The first call prepares what a GPU reads. Errors: the driver's; memory that is short.
  Result<std::vector<std::uint64_t>> read();

 private:
  Result<> prepare_gpu();
  Result<std::vector<std::uint64_t>> read_on_gpu();

  const RankBuffers* memory_;
  Rank me_;
  std::vector<PartRows> parts_;
  std::optional<cuda::FingerprintRunner> runner_;
};

}  // namespace reshard::conversion
