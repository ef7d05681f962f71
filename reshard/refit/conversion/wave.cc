// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/wave.h"

#include <algorithm>
#include <cstring>

namespace reshard {
namespace {

/// The slots of data, scales and factors of pairs with these values, ascending.
std::vector<SlotId> stored_slots(const QuantisedLayout& layout, const std::vector<SlotId>& values) {
  std::vector<SlotId> slots;
  for (const QuantisedLayout::Pair& pair : layout.pairs) {
    if (!std::ranges::binary_search(values, pair.values)) continue;
    slots.push_back(pair.data);
    slots.push_back(pair.scales);
    if (pair.factor.value() >= 0) slots.push_back(pair.factor);
  }
  std::ranges::sort(slots);
  return slots;
}

std::set<std::string> names_of(const ModelSpec& model, const std::vector<bool>& tensors) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]) names.insert(model.tensors()[i].name);
  return names;
}

/// Canonical names of the data, scales and factors of these tensors, as quantise_layout() has them.
std::set<std::string> stored_names(const QuantisedLayout& layout,
                                   const std::vector<bool>& tensors) {
  std::set<std::string> names;
  for (const std::string& name : names_of(layout.values->model(), tensors)) {
    names.insert(name);
    names.insert(name + scale_suffix(layout.choice.format));
    if (layout.choice.format.tensor_factor) names.insert(name + "_scale_2");
  }
  return names;
}

}  // namespace

Index StagingTensors::bytes(Rank me) const {
  Index bytes = 0;
  for (const SlotId slot : slots)
    if (layout->rank_set(layout->slot(slot).ranks).contains(me))
      bytes += lines(bytes_of_local(*layout, me, slot));
  return bytes;
}

Result<std::byte*> StagingTensors::place(Rank me, std::byte* at) {
  if (layout == nullptr) return at;
  memory.emplace(layout);
  for (const SlotId slot : slots) {
    if (!layout->rank_set(layout->slot(slot).ranks).contains(me)) continue;
    const Index bytes = bytes_of_local(*layout, me, slot);
    RESHARD_TRY(memory->bind(me, slot, {at, static_cast<std::size_t>(bytes)}));
    at += lines(bytes);
  }
  return at;
}

void StagingTensors::clear(Rank me) {
  if (layout == nullptr) return;
  for (const SlotId slot : slots)
    if (std::byte* at = memory->at(me, slot); at != nullptr && layout->slot(slot).padded)
      std::memset(at, 0, static_cast<std::size_t>(memory->bytes(me, slot)));
}

Result<> Wave::plan(const SessionSide& source, const SessionSide& target, const Routes& routes) {
  const auto &from = source.values(), &to = target.values();
  const auto by_value = [&] { return names_of(from->model(), tensors_); };
  const auto add = [&](const std::shared_ptr<const ModelLayout>& a,
                       const std::shared_ptr<const ModelLayout>& b,
                       std::set<std::string> only) -> Result<> {
    moves_.push_back(RESHARD_TRY(PlannedMove::plan(a, b, {.ignore = {}, .only = std::move(only)})));
    return {};
  };
  const auto values_of = [&](const QuantisedLayout& layout) {
    return StagingTensors{layout.values, value_slots(&layout, tensors_)};
  };
  const auto stored_of = [&](const QuantisedLayout& layout) {
    return StagingTensors{layout.stored, stored_slots(layout, value_slots(&layout, tensors_))};
  };
  switch (route_) {
    case Route::none: return {};
    case Route::plain: return add(from, to, by_value());
    case Route::stored:
      return add(source.stored(), target.stored(), stored_names(*target.quantised, tensors_));
    case Route::quantise_at_sender:
      landing_[0] = stored_of(*routes.sender);
      return add(routes.sender->stored, target.stored(), stored_names(*target.quantised, tensors_));
    case Route::quantise_at_receiver:
      landing_[1] = values_of(*target.quantised);
      return add(from, to, by_value());
    case Route::quantise_between:
      landing_[0] = values_of(*routes.between);
      landing_[1] = stored_of(*routes.between);
      RESHARD_TRY(add(from, routes.between->values, by_value()));
      return add(routes.between->stored, target.stored(),
                 stored_names(*target.quantised, tensors_));
    case Route::dequantise_at_sender:
      landing_[0] = values_of(*source.quantised);
      return add(from, to, by_value());
    case Route::dequantise_at_receiver:
      landing_[1] = stored_of(*routes.receiver);
      return add(source.stored(), routes.receiver->stored,
                 stored_names(*source.quantised, tensors_));
    case Route::requantise:
      landing_[0] = values_of(*source.quantised);
      landing_[1] = values_of(*target.quantised);
      return add(from, to, by_value());
  }
  return {};
}

Index Wave::landing_bytes(Rank me) const {
  Index bytes = 0;
  for (const StagingTensors& landing : landing_)
    if (!banded_ && landing.layout != nullptr) bytes += landing.bytes(me);
  return bytes;
}

Result<> Wave::place(const Memory& memory, const Routes& routes, Rank me) {
  if (banded_) names_ = RESHARD_TRY(AddressRange::reserve(landing_[1].bytes(me)));
  std::byte* at = banded_ ? names_.begin() : memory.arena;
  for (StagingTensors& landing : landing_) at = RESHARD_TRY(landing.place(me, at));
  const auto pass = [&](const QuantisedLayout& layout, const RankBuffers* values,
                        const RankBuffers* stored, Pass::To to) -> Result<Pass> {
    if (values == nullptr || stored == nullptr) return Pass();
    return Pass::make(layout, value_slots(&layout, tensors_), *values, *stored, me, to,
                      memory.unit_bytes);
  };
  const auto land = [&](std::size_t i) { return &*landing_[i].memory; };
  const std::size_t copies = memory.target_values.size();
  switch (route_) {
    case Route::quantise_at_sender:
      before_ =
          RESHARD_TRY(pass(*routes.sender, memory.source_values, land(0), Pass::To::quantised));
      return {};
    case Route::quantise_between:
      between_ = RESHARD_TRY(pass(*routes.between, land(0), land(1), Pass::To::quantised));
      return {};
    case Route::requantise:
    case Route::dequantise_at_sender:
      before_ = RESHARD_TRY(
          pass(*memory.source.quantised, land(0), memory.source.buffers, Pass::To::values));
      break;
    default: break;
  }
  for (std::size_t c = 0; c < copies; ++c) {
    if (route_ == Route::quantise_at_receiver || route_ == Route::requantise)
      after_.push_back(RESHARD_TRY(
          pass(*memory.target.quantised, land(1), memory.target_stored[c], Pass::To::quantised)));
    if (route_ == Route::dequantise_at_receiver)
      after_.push_back(
          RESHARD_TRY(pass(*routes.receiver, memory.target_values[c], land(1), Pass::To::values)));
  }
  if (banded_) bands_ = std::make_unique<BandPass>(std::exchange(after_, {}));
  return {};
}

/// What the first move converts while it packs and unpacks, if it does.
void Wave::make_work(WorkerPool& pool) {
  if (converts_before())
    packing_ = std::make_unique<PassWork>(std::vector{&before_}, PassWork::When::before, pool);
  std::vector<Pass*> following;
  if (route_ == Route::quantise_between) following.push_back(&between_);
  for (Pass& pass : after_) following.push_back(&pass);
  if (!following.empty())
    unpacking_ = std::make_unique<PassWork>(std::move(following), PassWork::When::after, pool);
}

Result<> Wave::prepare(const JobGroup& group, const Memory& memory) {
  JobGroup first = group;
  if (!is_direct() && !banded_) {
    make_work(*group.hooks.pool);
    first.hooks.before = packing_.get();
    first.hooks.after = unpacking_.get();
  }
  const auto land = [&](std::size_t i) -> const RankBuffers* { return &*landing_[i].memory; };
  switch (route_) {
    case Route::none: return {};
    case Route::plain: return moves_[0].prepare(first, memory.source_values, memory.target_values);
    case Route::stored:
      return moves_[0].prepare(first, memory.source.buffers, memory.target_stored);
    case Route::quantise_at_sender: return moves_[0].prepare(first, land(0), memory.target_stored);
    case Route::quantise_at_receiver:
      if (banded_) return moves_[0].prepare_bands(group, memory.source_values, *land(1), *bands_);
      return moves_[0].prepare(first, memory.source_values, {land(1)});
    case Route::quantise_between:
      RESHARD_TRY(moves_[0].prepare(first, memory.source_values, {land(0)}));
      return moves_[1].prepare(group, land(1), memory.target_stored);
    case Route::dequantise_at_sender:
      return moves_[0].prepare(first, land(0), memory.target_values);
    case Route::dequantise_at_receiver:
      if (banded_) return moves_[0].prepare_bands(group, memory.source.buffers, *land(1), *bands_);
      return moves_[0].prepare(first, memory.source.buffers, {land(1)});
    case Route::requantise: return moves_[0].prepare(first, land(0), {land(1)});
  }
  return {};
}

}  // namespace reshard
