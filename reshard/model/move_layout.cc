// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/move_layout.h"

#include <fmt/format.h>

#include "reshard/model/layout_builder.h"

namespace reshard {

Result<ModelLayout> move_layout(const ModelLayout& layout, Rank first) {
  constexpr Index kMostRanks = Index{1} << 20;
  const std::vector<Rank> ranks = layout.ranks().members();
  if (ranks.empty() || first.value() < 0 ||
      Index{first.value()} + ranks.back().value() - ranks.front().value() >= kMostRanks)
    return fail(Code::invalid_argument,
                fmt::format("{} cannot begin at rank {}", layout.name(), first.value()));
  LayoutBuilder out(layout.name(), layout.shared_model());
  out.add_all(layout, first.value() - ranks.front().value());
  for (Index i = 0; i < layout.model().size(); ++i)
    if (const TensorId id(static_cast<TensorId::rep>(i)); layout.omits(id)) out.omit(id);
  return std::move(out).finish();
}

Result<QuantisedLayout> move_layout(const QuantisedLayout& layout, Rank first) {
  QuantisedLayout out = layout;
  for (std::shared_ptr<const ModelLayout>* each : {&out.values, &out.stored})
    *each = std::make_shared<const ModelLayout>(RESHARD_TRY(move_layout(**each, first)));
  return out;
}

}  // namespace reshard
