// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/input_first.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/layout_builder.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard::quant {
namespace {

/// The position of dimension `dim` of a tensor of this rank after dimension 1 moved to the end.
int moved(int dim, int rank) { return dim == 1 ? rank - 1 : dim > 1 ? dim - 1 : dim; }

/// The canonical dimension of an input-first tensor that blocks run along.
constexpr std::size_t kInputDim = 1;

/// The full dimension of the input of all parts; none if they differ.
std::optional<int> input_dim(const Slot& slot) {
  std::optional<int> dim;
  for (const Section& section : slot.sections)
    for (const PlacedBox& p : section.parts) {
      if (dim && *dim != p.dims[kInputDim]) return std::nullopt;
      dim = p.dims[kInputDim];
    }
  return dim;
}

bool is_merged(MergedDims merged, int first) {
  return first >= 0 && (merged.bits >> static_cast<unsigned>(first) & 1) != 0;
}

/// The slot with full dimension `last` moved to the end. @pre it is merged with none
Slot with_dim_last(Slot slot, int last) {
  const int n = slot.sections[0].extent.size();
  const auto place = [&](int d) { return d == last ? n - 1 : d < last ? d : d - 1; };
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

Result<Slot> slot_with_input_last(const ModelLayout& layout, const Slot& slot,
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
    return with_dim_last(slot, *dim);
  return fail(Code::unsupported,
              fmt::format("{}: local tensor '{}' cannot be quantised: its blocks would run along a "
                          "dimension that it merges with others or mixes with other tensors'",
                          layout.name(), slot.name));
}

}  // namespace

Dims with_input_last(const Dims& shape) {
  Dims out = shape;
  for (int i = 0; i < shape.size(); ++i) out[moved(i, shape.size())] = shape[i];
  return out;
}

MergedDims with_input_last(MergedDims merged) {
  const unsigned bits = merged.bits;
  return {static_cast<std::uint8_t>((bits & 1U) | (bits >> 2U) << 1U)};
}

PlacedBox with_input_last(const PlacedBox& part) {
  PlacedBox out = part;
  const int n = part.box.rank();
  std::array<Interval, kMaxDims> box;
  for (int i = 0; i < n; ++i) {
    box[static_cast<std::size_t>(moved(i, n))] = part.box[i];
    out.dims[static_cast<std::size_t>(moved(i, n))] = part.dims[static_cast<std::size_t>(i)];
  }
  out.box = Box(std::span<const Interval>(box.data(), static_cast<std::size_t>(n)));
  return out;
}

}  // namespace reshard::quant

namespace reshard {

Result<std::shared_ptr<const ModelLayout>> input_last(std::shared_ptr<const ModelLayout> layout,
                                                      const std::set<std::string>& input_first) {
  if (input_first.empty()) return layout;
  LayoutBuilder b(layout->name(), layout->shared_model(), *layout);
  for (Index t = 0; t < layout->model().size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    if (layout->omits(id)) b.omit(id);
  }
  for (Index i = 0; i < layout->num_slots(); ++i)
    b.add(RESHARD_TRY(quant::slot_with_input_last(
        *layout, layout->slot(SlotId(static_cast<SlotId::rep>(i))), input_first)));
  return std::make_shared<const ModelLayout>(RESHARD_TRY(std::move(b).finish()));
}

}  // namespace reshard
