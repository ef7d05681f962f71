// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/staging_tensors.h"

#include <cstring>

#include "reshard/memory/cache_line.h"

namespace reshard::conversion {

Index StagingTensors::bytes(Rank me) const {
  Index bytes = 0;
  for (const SlotId slot : slots_)
    if (has(me, slot)) bytes += whole_lines(bytes_of_local(*layout_, me, slot));
  return bytes;
}

Result<> StagingTensors::place(Rank me, std::byte* at) {
  memory_.emplace(layout_);
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

void StagingTensors::clear(Rank me) {
  for (const SlotId slot : slots_)
    if (std::byte* at = memory_->at(me, slot); at != nullptr && layout_->slot(slot).padded)
      std::memset(at, 0, static_cast<std::size_t>(memory_->bytes(me, slot)));
}

}  // namespace reshard::conversion
