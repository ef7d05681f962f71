// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "reshard/base/hash.h"
#include "reshard/exec/agreement.h"
#include "reshard/exec/end_group.h"
#include "reshard/plan/waves.h"

namespace reshard::conversion {
namespace {

/// Staging for messages beside staging tensors: the least that is allowed, and what is enough.
constexpr Index kLeastStaging = Index{32} << 10, kEnoughStaging = Index{8} << 20;

/// A unit of values and its messages are part of an exchange, of which eight are in progress. The
/// least bytes that are worth a unit.
constexpr Index kUnitsInStaging = 16, kLeastUnit = Index{4} << 10;

/// Those of which one wave has all tensors. Tensors that need no conversion move first.
constexpr Route kRoutes[] = {Route::plain,
                             Route::stored,
                             Route::quantise_at_receiver,
                             Route::dequantise_at_receiver,
                             Route::quantise_at_sender,
                             Route::dequantise_at_sender,
                             Route::requantise};

std::vector<bool> with(const Routes& routes, Route route) {
  std::vector<bool> tensors;
  for (const Route r : routes.of) tensors.push_back(r == route);
  return tensors;
}

bool any(const std::vector<bool>& tensors) {
  return std::ranges::find(tensors, true) != tensors.end();
}

}  // namespace

Job::Job(const JobInput& input)
    : group_{input.transport, input.control, input.options.refit, {}},
      source_(input.source),
      target_(input.target),
      pool_(input.options.refit.threads) {
  group_.options.staging_bytes = input.staging_bytes;
  group_.hooks.pool = &pool_;
}

Result<std::unique_ptr<Job>> Job::prepare(const JobInput& input) {
  std::unique_ptr<Job> job(new Job(input));
  RESHARD_TRY(job->plan(input));
  if (auto placed = job->place(input); !placed)
    return end_group(input.control, std::move(placed).error());
  RESHARD_TRY(job->prepare_moves());
  job->count_peers();
  return job;
}

Result<> Job::plan(const JobInput& input) {
  PlannedMove whole = RESHARD_TRY(
      PlannedMove::plan(source_.values(), target_.values(), {.ignore = input.options.ignore}));
  std::vector<bool> moves;
  for (Index i = 0; i < target_.values()->model().size(); ++i)
    moves.push_back(whole.planner().moves(TensorId(static_cast<TensorId::rep>(i))));
  routes_ = RESHARD_TRY(find_routes(source_, target_, moves, input.options.convert));
  if (source_.quantised == nullptr && target_.quantised == nullptr) {
    waves_.emplace_back(Route::plain, std::move(moves));
    waves_.back().moves().push_back(std::move(whole));
    return {};
  }
  add_waves(input);
  for (Wave& wave : waves_) RESHARD_TRY(wave.plan(source_, target_, routes_));
  return {};
}

void Job::add_waves(const JobInput& input) {
  for (const Route route : kRoutes)
    if (auto tensors = with(routes_, route); any(tensors))
      waves_.emplace_back(route, std::move(tensors));
  const auto tensors = with(routes_, Route::quantise_between);
  if (!any(tensors)) return;
  Index& staging = group_.options.staging_bytes;
  staging = std::min(staging, std::clamp(staging / 4, kLeastStaging, kEnoughStaging));
  const Index cap = std::max<Index>(0, input.staging_bytes - staging);
  const StagedSlots staged{routes_.between->values, value_slots(routes_.between.get(), tensors)};
  for (const auto& group : waves_of({&staged, 1}, cap)) {
    std::vector<bool> in_group(tensors.size());
    for (const TensorId id : group) in_group[id.index()] = tensors[id.index()];
    waves_.emplace_back(Route::quantise_between, std::move(in_group));
  }
}

/// This rank's memory of a side's plain tensors, as buffers of the layout of values.
Result<const RankBuffers*> Job::values_view(const SessionSide& side, const RankBuffers* stored) {
  if (side.quantised == nullptr || stored == nullptr) return stored;
  const QuantisedLayout& layout = *side.quantised;
  auto view = std::make_unique<RankBuffers>(layout.values);
  for (const SlotId slot : layout.values->slots_of(group_.me())) {
    const SlotId plain = layout.plain[slot.index()];
    if (plain.value() < 0) continue;
    std::byte* const at = stored->at(group_.me(), plain);
    const auto bytes = static_cast<std::size_t>(stored->bytes(group_.me(), plain));
    if (at != nullptr) RESHARD_TRY(view->bind(group_.me(), slot, {at, bytes}));
  }
  views_.push_back(std::move(view));
  return views_.back().get();
}

Wave::Memory Job::memory() {
  // Identical on all ranks, since senders pack along the units of receivers.
  const Index unit = group_.options.staging_bytes / kUnitsInStaging;
  return {source_,
          target_,
          source_values_,
          target_values_,
          target_stored_,
          arena_.data(),
          std::clamp(unit, kLeastUnit, Pass::kUnitBytes)};
}

Result<> Job::place(const JobInput& input) {
  source_values_ = RESHARD_TRY(values_view(source_, source_.buffers));
  const bool doubled = input.options.buffering == Buffering::doubled;
  for (const RankBuffers* copy : {target_.buffers, target_.back}) {
    if (!target_stored_.empty() && !doubled) break;
    target_stored_.push_back(copy);
    target_values_.push_back(RESHARD_TRY(values_view(target_, copy)));
  }
  Index staged_bytes = 0;
  std::size_t refits = 0;
  for (const Wave& wave : waves_) {
    staged_bytes = std::max(staged_bytes, wave.staging_tensor_bytes(group_.me()));
    refits += wave.moves().size() * target_stored_.size();
  }
  arena_ = RESHARD_TRY(HostBuffer::allocate(staged_bytes, {.prefault_threads = 1, .shared = true}));
  if (refits > 1) {
    CompileOptions messages;
    messages.staging_bytes = group_.options.staging_bytes;
    staging_ = RESHARD_TRY(HostBuffer::allocate(message_staging(messages)));
    group_.hooks.staging = staging_.bytes();
  }
  const Wave::Memory all = memory();
  for (Wave& wave : waves_) RESHARD_TRY(wave.place(all, group_.me()));
  // The local tensors whose bytes no comparison from memory to memory covers.
  std::vector<bool> converts;
  for (const Route route : routes_.of)
    converts.push_back(route != Route::none && route != Route::plain && route != Route::stored);
  if (target_.stored() != nullptr && target_.buffers != nullptr) find_converted(converts);
  return {};
}

void Job::find_converted(const std::vector<bool>& converts) {
  const ModelLayout& stored = *target_.stored();
  std::vector<SlotId> slots;
  if (target_.quantised != nullptr) {
    for (const QuantisedLayout::Pair& pair : target_.quantised->pairs)
      for (const SlotId slot : {pair.data, pair.scales, pair.factor})
        if (slot.value() >= 0) slots.push_back(slot);
  } else {
    for (const SlotId slot : stored.slots_of(group_.me()))
      for (const Section& section : stored.slot(slot).sections)
        for (const PlacedBox& part : section.parts)
          if (converts[part.tensor.index()]) slots.push_back(slot);
  }
  std::ranges::sort(slots);
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  for (const SlotId slot : slots)
    if (stored.rank_set(stored.slot(slot).ranks).contains(group_.me())) converted_.push_back(slot);
  recorded_.assign(converted_.size(), 0);
}

Result<> Job::prepare_moves() {
  const Wave::Memory all = memory();
  for (Wave& wave : waves_) RESHARD_TRY(wave.prepare(group_, all));
  return {};
}

void Job::count_peers() {
  std::map<Rank, PeerVolume> volumes;
  for (const Wave& wave : waves_)
    for (const PlannedMove& move : wave.moves()) {
      const Planner& planner = move.planner();
      const RankPlan part = planner.rank_plan(group_.me());
      const auto bytes = [&](const Transfer& t) {
        return t.box.volume() * planner.element_bits(t.tensor) / 8;
      };
      for (const Transfer& t : part.sends) volumes[t.dst].sent += bytes(t);
      for (const Transfer& t : part.recvs) volumes[t.src].received += bytes(t);
    }
  for (auto& [rank, volume] : volumes) {
    volume.peer = rank;
    peers_.push_back(volume);
  }
}

Result<> Job::run(int copy, bool verify, SessionReport& report) {
  for (Wave& wave : waves_) RESHARD_TRY(wave.run(group_, copy, verify, report));
  return {};
}

std::uint64_t Job::digest_of(std::size_t i, int copy) const {
  const RankBuffers& memory =
      *target_stored_[target_stored_.size() > 1 ? static_cast<std::size_t>(copy) : 0];
  const SlotId slot = converted_[i];
  const std::byte* const at = memory.at(group_.me(), slot);
  if (at == nullptr) return 0;
  return hash64({reinterpret_cast<const char*>(at),
                 static_cast<std::size_t>(memory.bytes(group_.me(), slot))});
}

Result<> Job::check(int copy) {
  for (Wave& wave : waves_)
    if (wave.is_direct())
      for (PlannedMove& move : wave.moves()) RESHARD_TRY(move.check(group_, copy));
  for (std::size_t i = 0; i < converted_.size(); ++i) recorded_[i] = digest_of(i, copy);
  return {};
}

Result<> Job::check_again(int copy, bool recorded) {
  for (Wave& wave : waves_) {
    if (wave.is_direct())
      for (PlannedMove& move : wave.moves()) RESHARD_TRY(move.check_again(group_, copy, recorded));
    else if (!recorded)
      RESHARD_TRY(wave.check(group_, copy));
  }
  std::string mine;
  for (std::size_t i = 0; i < converted_.size() && recorded && mine.empty(); ++i)
    if (digest_of(i, copy) != recorded_[i])
      mine = fmt::format("local tensor '{}' is not what was committed",
                         target_.stored()->slot(converted_[i]).name);
  const std::string first = RESHARD_TRY(agree_on_reason(mine, group_.control, group_.deadline()));
  if (!first.empty()) return fail(Code::corrupt, first);
  return {};
}

std::string_view Job::path() const {
  return waves_.empty() ? "direct" : waves_.front().moves().front().refit().path();
}

const std::string& Job::reason() const {
  static const std::string none;
  return waves_.empty() ? none : waves_.front().moves().front().refit().reason();
}

Index Job::staging_bytes() const {
  Index most = 0;
  for (const Wave& wave : waves_)
    for (const PlannedMove& move : wave.moves()) most = std::max(most, move.staging_bytes());
  return arena_.size() + most;
}

}  // namespace reshard::conversion
