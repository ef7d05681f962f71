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

Result<> StagingTensors::place(std::span<const Rank> ranks, std::byte* at,
                               std::shared_ptr<const cuda::Device> gpu, cuda::StreamHandle stream) {
  memory_.emplace(layout_);
  memory_->set_device(std::move(gpu), stream);
  for (const Rank r : ranks) {
    for (const SlotId slot : slots_) {
      if (!has(r, slot)) continue;
      const Index bytes = bytes_of_local(*layout_, r, slot);
      RESHARD_TRY(memory_->bind(r, slot, {at, static_cast<std::size_t>(bytes)}));
      at += whole_lines(bytes);
    }
  }
  return {};
}

Result<> StagingTensors::reserve(Rank me) {
  addresses_ = RESHARD_TRY(AddressRange::reserve(bytes(me)));
  return place({{me}}, addresses_.begin());
}

template <class F>
void StagingTensors::for_each_padded(F&& f) const {
  for (const Rank r : memory_->ranks())
    for (const SlotId slot : slots_)
      if (std::byte* const at = memory_->at(r, slot); at != nullptr && layout_->slot(slot).padded)
        f(at, memory_->bytes(r, slot));
}

void StagingTensors::clear() {
  for_each_padded(
      [](std::byte* at, Index bytes) { std::memset(at, 0, static_cast<std::size_t>(bytes)); });
}

Result<> StagingTensors::clear(const cuda::Stream& stream) {
  Result<> done;
  for_each_padded([&](std::byte* at, Index bytes) {
    if (done) done = stream.fill(at, std::byte{0}, bytes);
  });
  return done;
}

}  // namespace reshard::conversion
