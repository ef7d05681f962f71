// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/value_source.h"

#include "reshard/convert/reference/quant_areas.h"

namespace reshard::reference {

ValueSource::ValueSource(const LayoutSide& side, const CheckpointSource& files, Index cache_bytes)
    : side_(side),
      files_(files),
      cache_bytes_(cache_bytes),
      pair_of_(static_cast<std::size_t>(side.values->num_slots())) {
  if (!side.quantised) return;
  for (const QuantisedLayout::Pair& pair : side.quantised->pairs)
    pair_of_[pair.values.index()] = &pair;
}

Result<std::shared_ptr<const std::byte>> ValueSource::open(Rank r, SlotId slot) {
  const auto* pair = pair_of_[slot.index()];
  if (pair == nullptr) {
    const SlotId stored = side_.quantised ? side_.quantised->plain[slot.index()] : slot;
    return std::shared_ptr<const std::byte>(std::shared_ptr<void>(),
                                            files_.buffers().at(r, stored));
  }
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    auto& known = entries_[{r, slot}];
    if (!known) {
      known = std::make_shared<Entry>();
      order_.push_back({r, slot});
      cached_ += bytes_of_local(*side_.values, r, slot);
      while (cached_ > cache_bytes_ && order_.size() > 1) {
        cached_ -= bytes_of_local(*side_.values, order_.front().first, order_.front().second);
        entries_.erase(order_.front());
        order_.pop_front();
      }
    }
    entry = entries_[{r, slot}];
  }
  std::call_once(entry->once, [&] {
    auto bytes = dequantise(r, *pair);
    if (bytes)
      entry->bytes = *std::move(bytes);
    else
      entry->outcome = tl::unexpected(std::move(bytes).error());
  });
  if (!entry->outcome) return tl::unexpected(entry->outcome.error());
  return std::shared_ptr<const std::byte>(entry->bytes, entry->bytes->data());
}

Result<std::shared_ptr<const ValueSource::Bytes>> ValueSource::dequantise(
    Rank r, const QuantisedLayout::Pair& pair) const {
  const QuantisedLayout& q = *side_.quantised;
  auto values =
      std::make_shared<Bytes>(static_cast<std::size_t>(bytes_of_local(*q.values, r, pair.values)));
  const RankBuffers& files = files_.buffers();
  const SlotMemory memory{values->data(), files.at(r, pair.data), files.at(r, pair.scales),
                          pair.factor.value() < 0 ? nullptr : files.at(r, pair.factor)};
  for (const QuantArea& area : RESHARD_TRY(areas_of(q, pair, r, memory)))
    dequantise_rows(area.quantised, area.values, 0, area.values.rows);
  files_.drop({files.at(r, pair.data), static_cast<std::size_t>(files.bytes(r, pair.data))});
  return std::shared_ptr<const Bytes>(std::move(values));
}

}  // namespace reshard::reference
