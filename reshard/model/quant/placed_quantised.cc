// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/placed_quantised.h"

#include <fmt/format.h>

#include <utility>

#include "reshard/model/placed_layouts.h"

namespace reshard {
namespace {

bool alike(const QuantChoice& a, const QuantChoice& b) {
  return a.format == b.format && a.grid == b.grid && a.tensors == b.tensors &&
         a.scale_suffix == b.scale_suffix && a.input_first == b.input_first &&
         a.refines == b.refines && a.others == b.others;
}

/// Errors: the ranks of a layout, which begin at `first` in `placed`, store other local tensors
/// there.
Result<> check_same_memory(const ModelLayout& own, const ModelLayout& placed, Rank first) {
  const Rank::rep by = first.value() - own.ranks().nth(0).value();
  for (const Rank r : own.ranks().members()) {
    const Rank there(r.value() + by);
    const std::vector<SlotId> mine = own.slots_of(r), theirs = placed.slots_of(there);
    bool same = mine.size() == theirs.size();
    for (std::size_t i = 0; same && i < mine.size(); ++i) {
      const Slot &a = own.slot(mine[i]), &b = placed.slot(theirs[i]);
      same = a.name == b.name && a.dtype == b.dtype &&
             own.local_shape(mine[i], r) == placed.local_shape(theirs[i], there);
    }
    if (!same)
      return fail(Code::unsupported,
                  fmt::format("{}: rank {} would store other tensors beside others' ranks",
                              own.name(), r.value()));
  }
  return {};
}

}  // namespace

Result<QuantisedLayout> place_layouts(std::string name,
                                      std::span<const PlacedQuantisedLayout> layouts) {
  std::vector<PlacedLayout> values;
  for (const PlacedQuantisedLayout& each : layouts) {
    if (!alike(each.layout->choice, layouts.front().layout->choice))
      return fail(Code::unsupported,
                  fmt::format("{} and {} are quantised in different ways",
                              layouts.front().layout->stored->name(), each.layout->stored->name()));
    values.push_back({each.layout->values, each.first});
  }
  auto all =
      std::make_shared<const ModelLayout>(RESHARD_TRY(place_layouts(std::move(name), values)));
  QuantChoice choice = layouts.front().layout->choice;
  choice.name.clear();
  QuantisedLayout placed = RESHARD_TRY(quantise_layout(std::move(all), std::move(choice)));
  for (const PlacedQuantisedLayout& each : layouts)
    RESHARD_TRY(check_same_memory(*each.layout->stored, *placed.stored, each.first));
  return placed;
}

}  // namespace reshard
