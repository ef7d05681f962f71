// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/element_oracle_testutil.h"

#include "reshard/base/check.h"
#include "reshard/base/hash.h"
#include "reshard/model/elements_testutil.h"

namespace reshard {
namespace {

/// Calls f(byte in memory, byte wanted) for each byte of each fragment.
template <class F>
void for_each_byte(const RankBuffers& buffers, F&& f) {
  const ModelLayout& layout = buffers.layout();
  for (Rank r : buffers.ranks()) {
    for (SlotId slot : layout.slots_of(r)) {
      const Index width = bits(layout.slot(slot).dtype) / 8;
      for (const Fragment& fragment : layout.local(slot, r).fragments) {
        for_each_element(layout.model(), fragment, [&](Index element, Index local) {
          for (Index b = 0; b < width; ++b) {
            const auto seed = static_cast<std::uint64_t>(fragment.tensor.value()) << 40 |
                              static_cast<std::uint64_t>(element * width + b);
            f(buffers.at(r, slot)[local * width + b], static_cast<std::byte>(mix64(seed)));
          }
        });
      }
    }
  }
}

}  // namespace

void fill_elements(const RankBuffers& buffers) {
  for_each_byte(buffers, [](std::byte& have, std::byte want) { have = want; });
}

Index count_wrong_elements(const RankBuffers& buffers) {
  Index wrong = 0;
  for_each_byte(buffers, [&](std::byte& have, std::byte want) { wrong += have != want; });
  return wrong;
}

RankBuffers allocate_all(std::shared_ptr<const ModelLayout> layout) {
  const auto ranks = layout->ranks().members();
  auto buffers = RankBuffers::allocate(std::move(layout), ranks);
  RESHARD_CHECK(buffers.has_value());
  return *std::move(buffers);
}

}  // namespace reshard
