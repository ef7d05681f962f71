// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/wave.h"

#include <algorithm>
#include <cstring>

#include "reshard/exec/end_group.h"
#include "reshard/exec/rank_path.h"

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
      staged_[0] = stored_of(*routes.sender);
      return add(routes.sender->stored, target.stored(), stored_names(*target.quantised, tensors_));
    case Route::quantise_at_receiver:
      staged_[1] = values_of(*target.quantised);
      return add(from, to, by_value());
    case Route::quantise_between:
      staged_[0] = values_of(*routes.between);
      staged_[1] = stored_of(*routes.between);
      RESHARD_TRY(add(from, routes.between->values, by_value()));
      return add(routes.between->stored, target.stored(),
                 stored_names(*target.quantised, tensors_));
    case Route::dequantise_at_sender:
      staged_[0] = values_of(*source.quantised);
      return add(from, to, by_value());
    case Route::dequantise_at_receiver:
      staged_[1] = stored_of(*routes.receiver);
      return add(source.stored(), routes.receiver->stored,
                 stored_names(*source.quantised, tensors_));
    case Route::requantise:
      staged_[0] = values_of(*source.quantised);
      staged_[1] = values_of(*target.quantised);
      return add(from, to, by_value());
  }
  return {};
}

Index Wave::staging_tensor_bytes(Rank me) const {
  Index bytes = 0;
  for (const StagingTensors& staging : staged_)
    if (!tiled_ && staging.layout != nullptr) bytes += staging.bytes(me);
  return bytes;
}

Result<> Wave::place(const Memory& memory, const Routes& routes, Rank me) {
  if (tiled_) names_ = RESHARD_TRY(AddressRange::reserve(staged_[1].bytes(me)));
  std::byte* at = tiled_ ? names_.begin() : memory.arena;
  for (StagingTensors& staging : staged_) at = RESHARD_TRY(staging.place(me, at));
  const auto pass = [&](const QuantisedLayout& layout, const RankBuffers* values,
                        const RankBuffers* stored, Pass::To to) -> Result<Pass> {
    if (values == nullptr || stored == nullptr) return Pass();
    return Pass::make(layout, value_slots(&layout, tensors_), *values, *stored, me, to,
                      memory.unit_bytes);
  };
  const auto staged = [&](std::size_t i) { return &*staged_[i].memory; };
  const std::size_t copies = memory.target_values.size();
  switch (route_) {
    case Route::quantise_at_sender:
      before_ =
          RESHARD_TRY(pass(*routes.sender, memory.source_values, staged(0), Pass::To::quantised));
      return {};
    case Route::quantise_between:
      between_ = RESHARD_TRY(pass(*routes.between, staged(0), staged(1), Pass::To::quantised));
      return {};
    case Route::requantise:
    case Route::dequantise_at_sender:
      before_ = RESHARD_TRY(
          pass(*memory.source.quantised, staged(0), memory.source.buffers, Pass::To::values));
      break;
    default: break;
  }
  for (std::size_t c = 0; c < copies; ++c) {
    if (route_ == Route::quantise_at_receiver || route_ == Route::requantise)
      after_.push_back(RESHARD_TRY(
          pass(*memory.target.quantised, staged(1), memory.target_stored[c], Pass::To::quantised)));
    if (route_ == Route::dequantise_at_receiver)
      after_.push_back(RESHARD_TRY(
          pass(*routes.receiver, memory.target_values[c], staged(1), Pass::To::values)));
  }
  if (tiled_) tiles_ = std::make_unique<TilePass>(std::exchange(after_, {}));
  return {};
}

/// Makes the work that the first move does while it packs and unpacks.
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
  if (!is_direct() && !tiled_) {
    make_work(*group.hooks.pool);
    first.hooks.before = packing_.get();
    first.hooks.after = unpacking_.get();
  }
  const auto staged = [&](std::size_t i) -> const RankBuffers* { return &*staged_[i].memory; };
  switch (route_) {
    case Route::none: return {};
    case Route::plain: return moves_[0].prepare(first, memory.source_values, memory.target_values);
    case Route::stored:
      return moves_[0].prepare(first, memory.source.buffers, memory.target_stored);
    case Route::quantise_at_sender:
      return moves_[0].prepare(first, staged(0), memory.target_stored);
    case Route::quantise_at_receiver:
      if (tiled_) return moves_[0].prepare_tiles(group, memory.source_values, *staged(1), *tiles_);
      return moves_[0].prepare(first, memory.source_values, {staged(1)});
    case Route::quantise_between:
      RESHARD_TRY(moves_[0].prepare(first, memory.source_values, {staged(0)}));
      return moves_[1].prepare(group, staged(1), memory.target_stored);
    case Route::dequantise_at_sender:
      return moves_[0].prepare(first, staged(0), memory.target_values);
    case Route::dequantise_at_receiver:
      if (tiled_) return moves_[0].prepare_tiles(group, memory.source.buffers, *staged(1), *tiles_);
      return moves_[0].prepare(first, memory.source.buffers, {staged(1)});
    case Route::requantise: return moves_[0].prepare(first, staged(0), {staged(1)});
  }
  return {};
}

bool Wave::converts_before() const {
  return route_ == Route::quantise_at_sender || route_ == Route::dequantise_at_sender ||
         route_ == Route::requantise;
}

Result<> Wave::convert(Pass& pass, const JobGroup& group, WorkerPool& pool, double& seconds) {
  if (pass.empty()) return {};
  const PhaseClock clock;
  auto done = pass.run(pool, group.control, group.deadline());
  seconds += clock.seconds();
  if (!done) return end_group(group.control, std::move(done).error());
  return {};
}

/// Collective. Verifies that a conversion would write again what it has written.
Result<> Wave::compare(Pass& pass, const JobGroup& group, WorkerPool& pool) {
  auto wrong = pass.compare(pool, group.control, group.deadline());
  if (!wrong) return end_group(group.control, std::move(wrong).error());
  auto agreed = agree_on_converted(group, *wrong);
  if (!agreed && !is_verdict(group.control, agreed.error()))
    return end_group(group.control, std::move(agreed).error());
  return agreed;
}

/// Prepares the first move: clears staging tensors, and converts what it sends unless packing does.
Result<> Wave::begin_fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                           SessionReport& report) {
  if (!tiled_)
    for (StagingTensors& staging : staged_) staging.clear(group.me());
  if (packing_) packing_->restart(0);
  const bool converts = which != Moves::again || route_ == Route::quantise_between;
  if (unpacking_) converts ? unpacking_->restart(copy) : unpacking_->skip();
  if (is_fused(0)) return {};
  return convert(before_, group, pool, report.before_seconds);
}

/// Runs the moves and the conversions before them, and verifies each. `Moves::again` moves into
/// staging tensors only, and verifies what earlier moves wrote to a copy as it is.
Result<> Wave::fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                     SessionReport& report) {
  RESHARD_TRY(begin_fetch(group, pool, copy, which, report));
  for (std::size_t m = 0; m < moves_.size(); ++m) {
    if (m == 1 && !is_fused(0)) RESHARD_TRY(convert(between_, group, pool, report.before_seconds));
    const Index before = report.bytes;
    if (which != Moves::again || is_staged(m)) RESHARD_TRY(moves_[m].run(copy, report));
    // Staged bytes are not delivered yet.
    if (is_staged(m) || tiled_) report.bytes = before;
    if (which != Moves::unverified && !is_direct())
      RESHARD_TRY(verify(group, pool, m, copy, which, report.check_seconds));
  }
  return {};
}

/// Collective. Verifies one move that has run, and the conversion before it.
Result<> Wave::verify(const JobGroup& group, WorkerPool& pool, std::size_t m, int copy, Moves which,
                      double& seconds) {
  const PhaseClock clock;
  // Fingerprints compare replicas, so convert also what no message needed.
  if (m == 0 && packing_ && is_fused(0)) packing_->run_rest();
  if (which == Moves::verified && m == 0 && converts_before())
    RESHARD_TRY(compare(before_, group, pool));
  if (which == Moves::verified && m == 1) RESHARD_TRY(compare(between_, group, pool));
  RESHARD_TRY(moves_[m].gather_again(group, copy));
  auto checked = moves_[m].check(group, copy);
  seconds += clock.seconds();
  if (!checked && !is_verdict(group.control, checked.error()))
    return end_group(group.control, std::move(checked).error());
  return checked;
}

Result<> Wave::run(const JobGroup& group, WorkerPool& pool, int copy, bool verify_all,
                   SessionReport& report) {
  RESHARD_TRY(fetch(group, pool, copy, verify_all ? Moves::verified : Moves::unverified, report));
  if (tiled_) report.bytes += tiles_->bytes();
  if (after_.empty()) return {};
  if (!is_fused(0)) RESHARD_TRY(convert(after(copy), group, pool, report.after_seconds));
  report.bytes += after(copy).bytes();
  if (!verify_all) return {};
  const PhaseClock clock;
  auto compared = compare(after(copy), group, pool);
  report.check_seconds += clock.seconds();
  return compared;
}

Result<> Wave::check(const JobGroup& group, WorkerPool& pool, int copy) {
  SessionReport ignored;
  RESHARD_TRY(fetch(group, pool, copy, Moves::again, ignored));
  if (after_.empty()) return {};
  return compare(after(copy), group, pool);
}

}  // namespace reshard::conversion
