// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/reference/reference_sides.h"

#include <algorithm>
#include <set>

#include "reshard/convert/checkpoint_source.h"
#include "reshard/convert/conversion_routes.h"
#include "reshard/convert/reference/value_source.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/io/layout_side.h"
#include "reshard/memory/available_memory.h"

namespace reshard {
namespace {

constexpr Index kFileCacheBytes = Index{256} << 20;

/// The most bytes of source local tensors, values and stored form together, that any one target
/// tensor is computed from. A smaller cache would compute the same ones repeatedly.
Index most_source_bytes(const ModelLayout& from, const ModelLayout& to) {
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

/// The cache of a side: enough for two local tensors at a time, within this process's share of the
/// memory.
Index cache_bytes(const ReferenceJob& job) {
  constexpr Index kLeast = Index{64} << 20;
  const Index wanted = 2 * most_source_bytes(*job.pair.from.values, *job.pair.to.values);
  const Index available = available_memory();
  return std::max(kLeast,
                  available == 0 ? wanted : std::min(wanted, available / 2 / job.processes));
}

}  // namespace

/// The checkpoint to read from. Must not move: readers refer to it.
struct ReferenceSides::Files {
  LayoutSide own;
  CheckpointSource source;
  reference::ValueSource values;
  Files(LayoutSide side, CheckpointSource bound)
      : own(std::move(side)), source(std::move(bound)), values(own, source, kFileCacheBytes) {}

  StreamSource stored() {
    return [this](Rank r, SlotId slot) -> Result<std::shared_ptr<const std::byte>> {
      return std::shared_ptr<const std::byte>(std::shared_ptr<void>(),
                                              source.buffers().at(r, slot));
    };
  }
};

ReferenceSides::ReferenceSides() = default;
ReferenceSides::ReferenceSides(ReferenceSides&&) noexcept = default;
ReferenceSides::~ReferenceSides() = default;

Result<ReferenceSides> ReferenceSides::of(const ReferenceJob& job) {
  ReferenceSides sides;
  const LayoutSide &from = job.pair.from, &to = job.pair.to;
  const bool codes = holds_codes(job.model, *from.values);
  const auto whole = RESHARD_TRY(make_side(codes ? "hf:quant=stored" : "hf", job.model)).values;
  const auto tensors = static_cast<std::size_t>(from.values->model().size());
  std::shared_ptr<ReferenceValues> values;
  if (job.model.weights) {
    LayoutSide own = RESHARD_TRY(own_side(job.model, codes));
    auto bound = RESHARD_TRY(CheckpointSource::bind(job.model, own.stored()));
    sides.files_ = std::make_shared<Files>(std::move(own), std::move(bound));
    values = std::make_shared<StreamedReferenceValues>(sides.files_->own.values,
                                                       sides.files_->values.reader());
  } else {
    values = std::make_shared<OracleReferenceValues>(job.seed);
  }
  sides.source_ = std::make_unique<ReferenceTensors>(from, values, whole, cache_bytes(job));
  if (sides.files_ && from.quantised && moves_as_stored(sides.files_->own, from))
    RESHARD_TRY(sides.source_->take_as_stored(sides.files_->own.stored(), sides.files_->stored(),
                                              std::vector<bool>(tensors, true)));
  // The oracle gives every element of a plain source directly, without a plan.
  const bool direct = !job.model.weights && !from.quantised;
  if (direct)
    values = std::make_shared<OracleReferenceValues>(job.seed, forms_of(*from.values));
  else
    values = std::make_shared<StreamedReferenceValues>(from.values, sides.source_->values_reader());
  sides.target_ = std::make_unique<ReferenceTensors>(to, std::move(values), whole);
  auto as_stored = RESHARD_TRY(moved_as_stored(job.pair, job.convert));
  if (std::ranges::find(as_stored, true) != as_stored.end())
    RESHARD_TRY(sides.target_->take_as_stored(from.stored(), sides.source_->stored_reader(),
                                              std::move(as_stored)));
  return sides;
}

}  // namespace reshard
