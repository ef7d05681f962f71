// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/reference_tensors.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "reshard/convert/reference/quant_areas.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/memory/worker_pool.h"

namespace reshard {

using reference::areas_of;
using reference::QuantArea;

namespace {

/// Calls work(area) for all areas, with so many threads.
template <class Work>
void for_each_area(const std::vector<QuantArea>& areas, int threads, Work&& work) {
  WorkerPool pool(std::min(std::max(1, threads), std::max(1, static_cast<int>(areas.size()))));
  std::atomic<std::size_t> next{0};
  auto body = [&](int) {
    for (std::size_t i = next++; i < areas.size(); i = next++) work(areas[i]);
  };
  pool.run(body);
}

Index size_of(const ReferenceTensor& local) {
  return static_cast<Index>(local.data.size() + local.scales.size() + local.factor.size());
}

std::vector<std::byte> zeros(const ModelLayout& layout, Rank r, SlotId slot) {
  return std::vector<std::byte>(static_cast<std::size_t>(bytes_of_local(layout, r, slot)));
}

}  // namespace

struct ReferenceTensors::Entry {
  std::once_flag once;
  std::optional<Error> error;
  std::shared_ptr<const ReferenceTensor> local;
};

ReferenceTensors::ReferenceTensors(LayoutSide side, std::shared_ptr<ReferenceValues> values,
                                   std::shared_ptr<const ModelLayout> whole, Index cache_bytes)
    : side_(std::move(side)),
      values_(std::move(values)),
      whole_layout_(std::move(whole)),
      cache_bytes_(cache_bytes),
      pair_of_(static_cast<std::size_t>(side_.values->num_slots())),
      part_of_(static_cast<std::size_t>(side_.stored()->num_slots())) {
  for (std::size_t v = 0; v < pair_of_.size(); ++v) {
    const SlotId slot(static_cast<SlotId::rep>(v));
    if (const SlotId plain = plain_slot(slot); plain.value() >= 0)
      part_of_[plain.index()] = {slot, 0};
  }
  if (!side_.quantised) return;
  for (const Pair& pair : side_.quantised->pairs) {
    pair_of_[pair.values.index()] = &pair;
    part_of_[pair.data.index()] = {pair.values, 0};
    part_of_[pair.scales.index()] = {pair.values, 1};
    if (pair.factor.value() >= 0) part_of_[pair.factor.index()] = {pair.values, 2};
  }
}

Result<> ReferenceTensors::take_as_stored(const std::shared_ptr<const ModelLayout>& from,
                                          StreamSource stored, std::vector<bool> moved) {
  stored_plan_ = RESHARD_TRY(plan_of_both(from, side_.stored()));
  stored_from_ = std::move(stored);
  moved_as_stored_ = std::move(moved);
  return {};
}

const QuantisedLayout::Pair* ReferenceTensors::pair_of(SlotId values_slot) const {
  return pair_of_[values_slot.index()];
}

SlotId ReferenceTensors::plain_slot(SlotId values_slot) const {
  return side_.quantised ? side_.quantised->plain[values_slot.index()] : values_slot;
}

template <class Make>
Result<std::shared_ptr<const ReferenceTensor>> ReferenceTensors::cached(const Key& key,
                                                                        Make&& make) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    auto& known = entries_[key];
    if (!known) known = std::make_shared<Entry>();
    entry = known;
  }
  std::call_once(entry->once, [&] {
    auto local = make();
    if (!local) {
      entry->error = std::move(local).error();
      return;
    }
    entry->local = std::make_shared<const ReferenceTensor>(*std::move(local));
    const std::lock_guard lock(mutex_);
    order_.push_back(key);
    cached_ += size_of(*entry->local);
    while (cached_ > cache_bytes_ && order_.size() > 1) {
      const auto oldest = entries_.find(order_.front());
      cached_ -= size_of(*oldest->second->local);
      entries_.erase(oldest);
      order_.pop_front();
    }
  });
  if (entry->error) return tl::unexpected(*entry->error);
  return entry->local;
}

Result<std::shared_ptr<const ReferenceTensor>> ReferenceTensors::make(Rank r, SlotId values_slot,
                                                                      int threads) {
  return cached({r, values_slot, false}, [&] { return compute(r, values_slot, threads); });
}

Result<std::shared_ptr<const ReferenceTensor>> ReferenceTensors::make_values(Rank r,
                                                                             SlotId values_slot,
                                                                             int threads) {
  const Pair* const pair = pair_of(values_slot);
  if (pair == nullptr) return make(r, values_slot, threads);
  return cached({r, values_slot, true}, [&] { return dequantise_tensor(r, *pair, threads); });
}

Result<ReferenceTensor> ReferenceTensors::compute(Rank r, SlotId slot, int threads) {
  if (const Pair* const pair = pair_of(slot); pair != nullptr)
    return quantise_tensor(r, *pair, threads);
  ReferenceTensor local;
  local.data = zeros(*side_.values, r, slot);
  RESHARD_TRY(values_->write(side_.values, r, slot, local.data, threads));
  return local;
}

ReferenceTensor ReferenceTensors::allocate(Rank r, const Pair& pair) const {
  const ModelLayout& stored = *side_.quantised->stored;
  ReferenceTensor local{zeros(stored, r, pair.data), zeros(stored, r, pair.scales), {}};
  if (pair.factor.value() >= 0) local.factor = zeros(stored, r, pair.factor);
  return local;
}

Result<ReferenceTensor> ReferenceTensors::quantise_tensor(Rank r, const Pair& pair, int threads) {
  bool as_stored = stored_plan_ != nullptr;
  for (const Section& section : side_.values->slot(pair.values).sections)
    for (const PlacedBox& part : section.parts)
      as_stored = as_stored && moved_as_stored_[part.tensor.index()];
  if (as_stored) return stream_tensor(*stored_plan_, stored_from_, r, pair, threads);
  if (!pair.whole) {
    ReferenceTensors* const whole = RESHARD_TRY(whole_side());
    return stream_tensor(*whole_plan_, whole->stored_reader(), r, pair, threads);
  }
  auto values = zeros(*side_.values, r, pair.values);
  RESHARD_TRY(values_->write(side_.values, r, pair.values, values, threads));
  ReferenceTensor local = allocate(r, pair);
  const auto areas = RESHARD_TRY(areas_of(*side_.quantised, pair, r,
                                          {values.data(), local.data.data(), local.scales.data(),
                                           local.factor.empty() ? nullptr : local.factor.data()}));
  for_each_area(areas, threads, [](const QuantArea& a) { quantise(a.values, a.quantised); });
  return local;
}

Result<ReferenceTensor> ReferenceTensors::stream_tensor(const Planner& planner,
                                                        const StreamSource& source, Rank r,
                                                        const Pair& pair, int threads) {
  ReferenceTensor local = allocate(r, pair);
  RESHARD_TRY(stream_into(planner, source, r, pair.data, local.data, threads));
  RESHARD_TRY(stream_into(planner, source, r, pair.scales, local.scales, threads));
  if (pair.factor.value() >= 0)
    RESHARD_TRY(stream_into(planner, source, r, pair.factor, local.factor, threads));
  return local;
}

Result<ReferenceTensor> ReferenceTensors::dequantise_tensor(Rank r, const Pair& pair, int threads) {
  const auto stored = RESHARD_TRY(make(r, pair.values, threads));
  ReferenceTensor values;
  values.data = zeros(*side_.values, r, pair.values);
  // The kernels only read what is quantised.
  const auto at = [](const std::vector<std::byte>& bytes) {
    return const_cast<std::byte*>(bytes.data());
  };
  const auto areas = RESHARD_TRY(areas_of(*side_.quantised, pair, r,
                                          {values.data.data(), at(stored->data), at(stored->scales),
                                           stored->factor.empty() ? nullptr : at(stored->factor)}));
  for_each_area(areas, threads, [](const QuantArea& a) {
    dequantise_rows(a.quantised, a.values, 0, a.values.rows);
  });
  return values;
}

Result<ReferenceTensors*> ReferenceTensors::whole_side() {
  const std::lock_guard lock(mutex_);
  if (whole_) return whole_.get();
  QuantChoice choice = side_.quantised->choice;
  choice.grid = BlockGrid::tensor;
  auto layout = RESHARD_TRY(quantise_layout(whole_layout_, std::move(choice)));
  LayoutSide side{whole_layout_, std::make_shared<const QuantisedLayout>(std::move(layout))};
  whole_plan_ = RESHARD_TRY(plan_of_both(side.stored(), side_.stored()));
  whole_ =
      std::make_unique<ReferenceTensors>(std::move(side), values_, whole_layout_, cache_bytes_);
  return whole_.get();
}

StreamSource ReferenceTensors::values_reader() {
  return [this](Rank r, SlotId slot) -> Result<std::shared_ptr<const std::byte>> {
    auto local = RESHARD_TRY(make_values(r, slot, 1));
    return std::shared_ptr<const std::byte>(local, local->data.data());
  };
}

StreamSource ReferenceTensors::stored_reader() {
  return [this](Rank r, SlotId slot) -> Result<std::shared_ptr<const std::byte>> {
    const auto [values_slot, part] = part_of_[slot.index()];
    auto local = RESHARD_TRY(make(r, values_slot, 1));
    const auto& bytes = part == 0 ? local->data : part == 1 ? local->scales : local->factor;
    return std::shared_ptr<const std::byte>(local, bytes.data());
  };
}

}  // namespace reshard
