// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reshard/cuda/stream.h"
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
  /// Places the local tensors of ranks at `at`, which has bytes() of each, in the memory of `gpu`,
  /// where their work is on `stream`, or, if that is null, of the host.
  Result<> place(std::span<const Rank> ranks, std::byte* at,
                 std::shared_ptr<const cuda::Device> gpu = nullptr,
                 cuda::StreamHandle stream = nullptr);
  /// Places them at addresses that have no memory behind them. Errors: no addresses are left.
  Result<> reserve(Rank me);
  /// Null before place() or reserve().
  const RankBuffers* buffers() const { return memory_ ? &*memory_ : nullptr; }
  /// Zeros the tensors that have padding. Before each use, since blocks may extend into padding,
  /// which must be zero. @pre they are in host memory
  void clear();
  /// The same for a GPU's memory: gives the stream that work. Errors: the driver's.
  Result<> clear(const cuda::Stream& stream);

 private:
  /// Calls f(memory, bytes) for each tensor that has padding.
  template <class F>
  void for_each_padded(F&& f) const;
  bool has(Rank me, SlotId slot) const {
    return layout_->rank_set(layout_->slot(slot).ranks).contains(me);
  }

  std::shared_ptr<const ModelLayout> layout_;
  std::vector<SlotId> slots_;
  std::optional<RankBuffers> memory_;
  AddressRange addresses_;
};

}  // namespace reshard::conversion
