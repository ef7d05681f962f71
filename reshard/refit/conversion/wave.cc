// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/wave.h"

#include <algorithm>
#include <cstring>

#include "reshard/base/stopwatch.h"
#include "reshard/exec/end_group.h"

namespace reshard::conversion {
namespace {

/// The data, scale and factor slots of the pairs with these value slots, ascending.
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

/// Canonical names of the data, scales and factors of these tensors, as quantise_layout() names
/// them.
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

Result<> StagingTensors::place(Rank me, std::byte* at) {
  if (layout == nullptr) return {};
  memory.emplace(layout);
  for (const SlotId slot : slots) {
    if (!layout->rank_set(layout->slot(slot).ranks).contains(me)) continue;
    const Index bytes = bytes_of_local(*layout, me, slot);
    RESHARD_TRY(memory->bind(me, slot, {at, static_cast<std::size_t>(bytes)}));
    at += lines(bytes);
  }
  return {};
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
  // A source that quantises is planned as stored, one that dequantises as values; a target the
  // other way.
  const auto convert_source = [&](const QuantisedLayout& layout, bool quantises) {
    conversions_.before = {&layout, value_slots(&layout, tensors_), quantises};
    from_ = quantises ? stored_of(layout) : values_of(layout);
  };
  const auto convert_target = [&](const QuantisedLayout& layout, bool quantises) {
    conversions_.after = {&layout, value_slots(&layout, tensors_), quantises};
    into_ = quantises ? values_of(layout) : stored_of(layout);
  };
  switch (route_) {
    case Route::none: return {};
    case Route::plain: return add(from, to, by_value());
    case Route::stored:
      return add(source.stored(), target.stored(), stored_names(*target.quantised, tensors_));
    case Route::quantise_at_sender:
      convert_source(*routes.sender, true);
      return add(routes.sender->stored, target.stored(), stored_names(*target.quantised, tensors_));
    case Route::quantise_at_receiver:
      convert_target(*target.quantised, true);
      return add(from, to, by_value());
    case Route::quantise_between:
      convert_target(*routes.between, true);
      between_ = stored_of(*routes.between);
      RESHARD_TRY(add(from, routes.between->values, by_value()));
      return add(routes.between->stored, target.stored(),
                 stored_names(*target.quantised, tensors_));
    case Route::dequantise_at_sender:
      convert_source(*source.quantised, false);
      return add(from, to, by_value());
    case Route::dequantise_at_receiver:
      convert_target(*routes.receiver, false);
      return add(source.stored(), routes.receiver->stored,
                 stored_names(*source.quantised, tensors_));
    case Route::requantise:
      convert_source(*source.quantised, false);
      convert_target(*target.quantised, true);
      return add(from, to, by_value());
  }
  return {};
}

Index Wave::staging_tensor_bytes(Rank me) const {
  return between_.layout == nullptr ? 0 : between_.bytes(me);
}

/// The memory of the first move; of its names, only what is made.
PlannedMove::Memory Wave::memory_of(const Memory& memory) const {
  PlannedMove::Memory out;
  out.conversions = conversions_;
  out.conversions.unit_bytes = memory.unit_bytes;
  const bool from_values = conversions_.before.layout != nullptr
                               ? conversions_.before.quantises
                               : route_ != Route::stored && route_ != Route::dequantise_at_receiver;
  out.from = from_values ? memory.source_values : memory.source.buffers;
  const bool into_values = route_ == Route::plain || route_ == Route::dequantise_at_sender ||
                           route_ == Route::dequantise_at_receiver;
  out.into = into_values ? memory.target_values : memory.target_stored;
  if (route_ == Route::quantise_between) out.into = {&*between_.memory};
  if (from_.memory) out.from_names = &*from_.memory;
  if (into_.memory) out.into_names = &*into_.memory;
  out.from_check = from_check_.get();
  out.into_check = into_check_.get();
  return out;
}

Result<> Wave::add_checks(const Memory& memory, Rank me) {
  const PlannedMove::Memory all = memory_of(memory);
  const auto pass = [&](const SideConversion& side, const StagingTensors& names,
                        const RankBuffers* other) -> Result<Pass> {
    if (other == nullptr) return Pass();
    const bool names_values = names.layout == side.layout->values;
    const RankBuffers& values = names_values ? *names.memory : *other;
    const RankBuffers& stored = names_values ? *other : *names.memory;
    return Pass::make(*side.layout, side.slots, values, stored, me,
                      side.quantises ? Pass::To::quantised : Pass::To::values, memory.unit_bytes);
  };
  if (conversions_.before.layout != nullptr)
    from_check_ =
        std::make_unique<SourceCheck>(RESHARD_TRY(pass(conversions_.before, from_, all.from)));
  if (conversions_.after.layout == nullptr) return {};
  std::vector<Pass> passes;
  for (const RankBuffers* to : all.into)
    passes.push_back(RESHARD_TRY(pass(conversions_.after, into_, to)));
  into_check_ = std::make_unique<TargetCheck>(std::move(passes));
  return {};
}

Result<> Wave::place(const Memory& memory, Rank me) {
  RESHARD_TRY(between_.place(me, memory.arena));
  if (from_.layout != nullptr) from_names_ = RESHARD_TRY(AddressRange::reserve(from_.bytes(me)));
  if (into_.layout != nullptr) into_names_ = RESHARD_TRY(AddressRange::reserve(into_.bytes(me)));
  RESHARD_TRY(from_.place(me, from_names_.begin()));
  RESHARD_TRY(into_.place(me, into_names_.begin()));
  return add_checks(memory, me);
}

Result<> Wave::prepare(const JobGroup& group, const Memory& memory) {
  if (route_ == Route::none) return {};
  RESHARD_TRY(moves_[0].prepare(group, memory_of(memory)));
  if (route_ != Route::quantise_between) return {};
  return moves_[1].prepare(group, {&*between_.memory, memory.target_stored});
}

/// Collective. Verifies one move that has run.
Result<> Wave::verify(const JobGroup& group, std::size_t move, int copy, double& seconds) {
  const Stopwatch clock;
  auto checked = moves_[move].check(group, copy);
  seconds += clock.seconds();
  if (!checked && !is_verdict(group.control, checked.error()))
    return end_group(group.control, std::move(checked).error());
  return checked;
}

Result<> Wave::run(const JobGroup& group, int copy, bool verifies, SessionReport& report) {
  between_.clear(group.me());
  for (std::size_t m = 0; m < moves_.size(); ++m) {
    const Index before = report.bytes;
    RESHARD_TRY(moves_[m].run(copy, report));
    // Staged bytes are not delivered yet.
    if (m + 1 < moves_.size()) report.bytes = before;
    if (verifies && !is_direct()) RESHARD_TRY(verify(group, m, copy, report.check_seconds));
  }
  return {};
}

Result<> Wave::check(const JobGroup& group, int copy) {
  SessionReport unused;
  between_.clear(group.me());
  for (std::size_t m = 0; m < moves_.size(); ++m) {
    if (m + 1 < moves_.size()) RESHARD_TRY(moves_[m].run(copy, unused));
    RESHARD_TRY(verify(group, m, copy, unused.check_seconds));
  }
  return {};
}

}  // namespace reshard::conversion
