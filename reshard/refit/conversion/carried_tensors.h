// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "reshard/memory/worker_pool.h"
#include "reshard/refit/session_side.h"

namespace reshard::conversion {

/// The local tensors of a doubled target that refits write in part or not at all: what is ignored,
/// and padding. A refit writes one of two copies and makes it the whole one, so the other bytes
/// must be there before. After they have been copied once, both copies hold them.
class CarriedTensors {
 public:
  CarriedTensors() = default;
  /// The carried tensors of rank `me`. `moves`: for each TensorId of the values, whether refits
  /// deliver it. The buffers of `target` must outlive the result. Errors: only one copy has memory
  /// for a tensor (named). @pre the target has disjoint `buffers` and `back` (MemoryCheck)
  static Result<CarriedTensors> of(const SessionSide& target, Rank me,
                                   const std::vector<bool>& moves);

  /// The first call copies the tensors from the copy that readers use to copy `copy`; the others do
  /// nothing. Errors: the driver's.
  Result<> copy_to(int copy, WorkerPool& pool);

 private:
  Result<> copy_on_host(int copy, WorkerPool& pool) const;
  Result<> copy_on_gpu(int copy) const;

  std::array<const RankBuffers*, 2> copies_{};
  Rank me_;
  std::vector<SlotId> slots_;
  bool copied_ = false;
};

}  // namespace reshard::conversion
