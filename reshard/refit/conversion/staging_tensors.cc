// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/staging_tensors.h"

#include <cstring>

#include "reshard/cuda/stream.h"
#include "reshard/memory/cache_line.h"

namespace reshard::conversion {

Index StagingTensors::bytes(Rank me) const {
  Index bytes = 0;
  for (const SlotId slot : slots_)
    if (has(me, slot)) bytes += whole_lines(bytes_of_local(*layout_, me, slot));
  return bytes;
}

Result<> StagingTensors::place(Rank me, std::byte* at, std::shared_ptr<const cuda::Device> gpu) {
  memory_.emplace(layout_);
  memory_->set_device(std::move(gpu));
  for (const SlotId slot : slots_) {
    if (!has(me, slot)) continue;
    const Index bytes = bytes_of_local(*layout_, me, slot);
    RESHARD_TRY(memory_->bind(me, slot, {at, static_cast<std::size_t>(bytes)}));
    at += whole_lines(bytes);
  }
  return {};
}

Result<> StagingTensors::reserve(Rank me) {
  addresses_ = RESHARD_TRY(AddressRange::reserve(bytes(me)));
  return place(me, addresses_.begin());
}

Result<> StagingTensors::clear(Rank me) {
  for (const SlotId slot : slots_) {
    std::byte* const at = memory_->at(me, slot);
    if (at == nullptr || !layout_->slot(slot).padded) continue;
    const Index bytes = memory_->bytes(me, slot);
    if (memory_->device() == nullptr) {
      std::memset(at, 0, static_cast<std::size_t>(bytes));
    } else {
      RESHARD_TRY(
          cuda::Stream::borrow(memory_->device(), memory_->stream()).fill(at, std::byte{0}, bytes));
    }
  }
  return {};
}

}  // namespace reshard::conversion
