// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "reshard/exec/rank_buffers.h"
#include "reshard/memory/address_range.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard::conversion {

/// Local tensors that are on no side of a session: in memory only while some moves run, or only
/// addresses.
class StagingTensors {
 public:
  StagingTensors() = default;
  StagingTensors(std::shared_ptr<const ModelLayout> layout, std::vector<SlotId> slots)
      : layout_(std::move(layout)), slots_(std::move(slots)) {}

  bool empty() const { return layout_ == nullptr; }
  /// Bytes of a rank's local tensors, each rounded up to whole cache lines.
  Index bytes(Rank me) const;
  /// Places the rank's local tensors at `at`, which has bytes(me), in the memory of `gpu` or, if
  /// that is null, of the host.
  Result<> place(Rank me, std::byte* at, std::shared_ptr<const cuda::Device> gpu = nullptr);
  /// Places them at addresses that have no memory behind them. Errors: no addresses are left.
  Result<> reserve(Rank me);
  /// Null before place() or reserve().
  const RankBuffers* buffers() const { return memory_ ? &*memory_ : nullptr; }
  /// Zeros the tensors that have padding. For tensors in memory, before each use: blocks may extend
  /// into padding, which must be zero. Errors: the GPU's.
  Result<> clear(Rank me);

 private:
  bool has(Rank me, SlotId slot) const {
    return layout_->rank_set(layout_->slot(slot).ranks).contains(me);
  }

  std::shared_ptr<const ModelLayout> layout_;
  std::vector<SlotId> slots_;
  std::optional<RankBuffers> memory_;
  AddressRange addresses_;
};

}  // namespace reshard::conversion
