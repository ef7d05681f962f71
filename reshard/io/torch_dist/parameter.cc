// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/torch_dist/parameter.h"

#include <fmt/format.h>

#include <array>

namespace reshard::torch_dist {

Result<> check_parameters(const ModelLayout& layout) {
  for (const Rank r : layout.ranks().members())
    for (const SlotId id : layout.slots_of(r))
      if (layout.slot(id).merged.bits != 0)
        return fail(Code::unsupported,
                    fmt::format("torch_dist: '{}' is part of a tensor that stacks all experts; "
                                "such models are neither read nor written in this format",
                                layout.slot(id).name));
  return {};
}

Parameter parameter_of(const ModelLayout& layout, SlotId id, Rank r) {
  Parameter out{&layout.slot(id), layout.local_shape(id, r), {}};
  Index before = 0;
  for (const Section& section : out.slot->sections) {
    for (PlacedBox part : section.parts) {
      part.at[out.slot->stack_dim] += before;
      out.parts.push_back(part);
    }
    if (section.extent.size() > 0) before += section.extent[out.slot->stack_dim];
  }
  return out;
}

Parameter rows_of(const Parameter& parameter, Index begin, Index end) {
  Parameter out{parameter.slot, parameter.shape, {}};
  out.shape[0] = end - begin;
  const Box box = Box::whole(parameter.shape).with(0, Interval{begin, end});
  for (const PlacedBox& part : parameter.parts)
    if (const auto kept = clipped(part, box)) out.parts.push_back(*kept);
  return out;
}

std::optional<PlacedBox> clipped(const PlacedBox& part, const Box& box) {
  PlacedBox out = part;
  std::array<bool, kMaxDims> mapped{};
  for (int i = 0; i < part.box.rank(); ++i) {
    const int dim = part.dims[static_cast<std::size_t>(i)];
    mapped[static_cast<std::size_t>(dim)] = true;
    const Interval kept = part.within(i, box[dim]);
    if (kept.empty()) return std::nullopt;
    out.box = out.box.with(i, kept);
    out.at[dim] =
        part.at[dim] + (kept.begin() - part.box[i].begin()) * part.step(i) - box[dim].begin();
  }
  for (int dim = 0; dim < part.at.size(); ++dim) {
    if (mapped[static_cast<std::size_t>(dim)]) continue;
    const Index at = part.at[dim];
    if (at < box[dim].begin() || at >= box[dim].end()) return std::nullopt;
    out.at[dim] = at - box[dim].begin();
  }
  return out;
}

PlacedBox stacked(const PlacedBox& part, const Dims& leading) {
  PlacedBox out = part;
  out.at = leading;
  for (const Index at : part.at) out.at.push_back(at);
  for (int i = 0; i < part.box.rank(); ++i)
    out.dims[static_cast<std::size_t>(i)] =
        static_cast<std::int8_t>(part.dims[static_cast<std::size_t>(i)] + leading.size());
  return out;
}

}  // namespace reshard::torch_dist
