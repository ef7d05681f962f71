// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/conversion/values_view.h"

namespace reshard::conversion {

Result<std::unique_ptr<RankBuffers>> values_view(const QuantisedLayout& layout,
                                                 const RankBuffers& stored) {
  auto view = std::make_unique<RankBuffers>(layout.values);
  view->set_device(stored.device(), stored.stream());
  for (const Rank r : stored.ranks()) {
    for (const SlotId slot : layout.values->slots_of(r)) {
      const SlotId plain = layout.plain[slot.index()];
      if (plain.value() < 0) continue;
      std::byte* const at = stored.at(r, plain);
      const auto bytes = static_cast<std::size_t>(stored.bytes(r, plain));
      if (at != nullptr) RESHARD_TRY(view->bind(r, slot, {at, bytes}));
    }
  }
  return view;
}

}  // namespace reshard::conversion
