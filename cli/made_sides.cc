// SPDX-License-Identifier: Apache-2.0
#include "cli/made_sides.h"

#include <algorithm>
#include <set>

#include "cli/checkpoint_source.h"
#include "cli/measure.h"
#include "cli/place.h"
#include "cli/value_source.h"
#include "reshard/exec/verify/fingerprints.h"

namespace reshard::cli {
namespace {

constexpr Index kFileCacheBytes = Index{256} << 20;

/// Bytes of the source's local tensors, as values and as they are stored, that one of the target's
/// is made of, at most: so much is kept, or the same ones would be made again and again.
Index most_made_of(const ModelLayout& from, const ModelLayout& to) {
  Index most = 0;
  for (Index i = 0; i < to.num_slots(); ++i) {
    std::set<SlotId> sources;
    for (const Section& section : to.slot(SlotId(static_cast<SlotId::rep>(i))).sections)
      for (const PlacedBox& part : section.parts)
        for (const PartId& place : from.parts_of(part.tensor)) sources.insert(place.slot);
    Index bytes = 0;
    for (const SlotId slot : sources)
      from.rank_set(from.slot(slot).ranks).for_each([&](Rank r) {
        bytes += 2 * bytes_of_local(from, r, slot);
      });
    most = std::max(most, bytes);
  }
  return most;
}

/// What a side may keep: enough for two that are made at a time, within this process's part of the
/// memory.
Index cache_bytes(const RunJob& job) {
  constexpr Index kLeast = Index{64} << 20;
  const Index ranks = job.arguments.in_processes() ? world_of(*job.pair.planner) : 1;
  const Index wanted = 2 * most_made_of(*job.pair.from.values, *job.pair.to.values);
  const Index available = available_memory();
  return std::max(kLeast, available == 0 ? wanted : std::min(wanted, available / 2 / ranks));
}

}  // namespace

/// A checkpoint to read from. Does not move: readers refer to it.
struct MadeSides::Files {
  LayoutSide own;
  CheckpointSource source;
  ValueSource values;
  Files(LayoutSide side, CheckpointSource bound)
      : own(std::move(side)), source(std::move(bound)), values(own, source, kFileCacheBytes) {}

  StreamSource stored() {
    return [this](Rank r, SlotId slot) -> Result<std::shared_ptr<const std::byte>> {
      return std::shared_ptr<const std::byte>(std::shared_ptr<void>(),
                                              source.buffers().at(r, slot));
    };
  }
};

MadeSides::MadeSides() = default;
MadeSides::MadeSides(MadeSides&&) noexcept = default;
MadeSides::~MadeSides() = default;

Result<MadeSides> MadeSides::of(const RunJob& job) {
  MadeSides made;
  const LayoutSide &from = job.pair.from, &to = job.pair.to;
  const auto whole = RESHARD_TRY(make_side("hf", job.model)).values;
  const auto tensors = static_cast<std::size_t>(job.model.tensors->size());
  std::shared_ptr<SideValues> values;
  if (job.model.weights) {
    LayoutSide own = RESHARD_TRY(own_side(job.model));
    auto bound = RESHARD_TRY(CheckpointSource::bind(job.model, own.stored()));
    made.files_ = std::make_shared<Files>(std::move(own), std::move(bound));
    values =
        std::make_shared<StreamedSideValues>(made.files_->own.values, made.files_->values.reader());
  } else {
    values = std::make_shared<OracleSideValues>(job.arguments.seed);
  }
  made.source_ = std::make_unique<MadeSide>(from, values, whole, cache_bytes(job));
  if (made.files_ && from.quantised && moves_as_stored(made.files_->own, from))
    RESHARD_TRY(made.source_->take_as_stored(made.files_->own.stored(), made.files_->stored(),
                                             std::vector<bool>(tensors, true)));
  // From a plain source the oracle says itself what every element is, without a plan.
  const bool direct = !job.model.weights && !from.quantised;
  if (direct)
    values = std::make_shared<OracleSideValues>(job.arguments.seed, forms_of(*from.values));
  else
    values = std::make_shared<StreamedSideValues>(from.values, made.source_->values_reader());
  made.target_ = std::make_unique<MadeSide>(to, std::move(values), whole);
  auto as_stored = RESHARD_TRY(moved_as_stored(job.pair, job.arguments.convert));
  if (std::ranges::find(as_stored, true) != as_stored.end())
    RESHARD_TRY(made.target_->take_as_stored(from.stored(), made.source_->stored_reader(),
                                             std::move(as_stored)));
  return made;
}

}  // namespace reshard::cli
