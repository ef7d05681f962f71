// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/layout_builder.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {
namespace {

/// The canonical dimension of an input-first tensor that blocks run along.
constexpr std::size_t kInput = 1;

/// The full dimension that holds the input of all parts; none where they differ.
std::optional<int> input_dim(const Slot& slot) {
  std::optional<int> dim;
  for (const Section& section : slot.sections)
    for (const PlacedBox& p : section.parts) {
      if (dim && *dim != p.dims[kInput]) return std::nullopt;
      dim = p.dims[kInput];
    }
  return dim;
}

bool is_merged(MergedDims merged, int first) {
  return first >= 0 && (merged.bits >> static_cast<unsigned>(first) & 1) != 0;
}

/// The slot with full dimension `moved` behind the others. @pre it is merged with none
Slot with_last(Slot slot, int moved) {
  const int n = slot.sections[0].extent.size();
  const auto place = [&](int d) { return d == moved ? n - 1 : d < moved ? d : d - 1; };
  const auto at = [](int d) { return static_cast<std::size_t>(d); };
  for (Section& section : slot.sections) {
    const Section old = section;
    for (int d = 0; d < n; ++d) {
      section.extent[place(d)] = old.extent[d];
      section.cuts[at(place(d))] = old.cuts[at(d)];
    }
    for (std::size_t k = 0; k < old.parts.size(); ++k) {
      PlacedBox& p = section.parts[k];
      for (int d = 0; d < n; ++d) p.at[place(d)] = old.parts[k].at[d];
      for (int i = 0; i < p.box.rank(); ++i)
        p.dims[at(i)] = static_cast<std::int8_t>(place(old.parts[k].dims[at(i)]));
    }
  }
  const MergedDims before = std::exchange(slot.merged, {});
  for (int d = 0; d + 1 < n; ++d)
    if (is_merged(before, d))
      slot.merged.bits = static_cast<std::uint8_t>(slot.merged.bits | 1U << place(d));
  slot.stack_dim = place(slot.stack_dim);
  return slot;
}

Result<Slot> turned(const ModelLayout& layout, const Slot& slot,
                    const std::set<std::string>& input_first) {
  std::size_t chosen = 0, parts = 0;
  for (const Section& section : slot.sections)
    for (const PlacedBox& p : section.parts) {
      chosen += input_first.contains(layout.model()[p.tensor].name) ? 1U : 0U;
      ++parts;
    }
  if (chosen == 0) return slot;
  const auto dim = chosen == parts ? input_dim(slot) : std::nullopt;
  const int last = slot.sections[0].extent.size() - 1;
  if (dim && *dim == last) return slot;
  if (dim && !is_merged(slot.merged, *dim) && !is_merged(slot.merged, *dim - 1))
    return with_last(slot, *dim);
  return fail(Code::unsupported,
              fmt::format("{}: local tensor '{}' cannot be quantised: its blocks would run along a "
                          "dimension that it merges with others or mixes with other tensors'",
                          layout.name(), slot.name));
}

}  // namespace

Result<std::shared_ptr<const ModelLayout>> input_last(std::shared_ptr<const ModelLayout> layout,
                                                      const std::set<std::string>& input_first) {
  if (input_first.empty()) return layout;
  LayoutBuilder b(layout->name(), layout->shared_model(), *layout);
  for (Index t = 0; t < layout->model().size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    if (layout->omits(id)) b.omit(id);
  }
  for (Index i = 0; i < layout->num_slots(); ++i)
    b.add(RESHARD_TRY(
        turned(*layout, layout->slot(SlotId(static_cast<SlotId::rep>(i))), input_first)));
  return std::make_shared<const ModelLayout>(RESHARD_TRY(std::move(b).finish()));
}

}  // namespace reshard
