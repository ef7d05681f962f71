// SPDX-License-Identifier: Apache-2.0
// Law: in a layout of several side by side, each rank holds what it holds in its own.
#include "reshard/model/placed_layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

#include "reshard/model/random_layout_testutil.h"

namespace reshard {
namespace {

using testing::HasSubstr;

/// The local tensors of a rank: names, shapes, and boxes with their places.
std::string held_by(const ModelLayout& layout, Rank r) {
  std::string out;
  for (const SlotId id : layout.slots_of(r)) {
    const LocalTensor local = layout.local(id, r);
    out += layout.slot(id).name + " " + to_string(local.shape) + "\n";
    for (const Fragment& f : local.fragments) {
      out += std::to_string(f.tensor.value()) + " " + to_string(f.box) + " at " +
             std::to_string(f.where.offset);
      for (const Index stride : f.where.strides) out += " " + std::to_string(stride);
      out += "\n";
    }
  }
  return out;
}

RC_GTEST_PROP(PlacedLayouts, each_rank_holds_what_it_holds_in_its_own_layout, ()) {
  const auto model = random_model();
  const auto a = random_layout(model), b = random_layout(model);
  const Rank first_of_b(
      static_cast<Rank::rep>(a->ranks().members().back().value() - a->ranks().nth(0).value() + 1));
  const std::array placed{PlacedLayout{a, Rank(0)}, PlacedLayout{b, first_of_b}};
  const auto both = place_layouts("both", placed);
  RC_ASSERT(both.has_value());
  for (const PlacedLayout& each : placed)
    for (const Rank r : each.layout->ranks().members()) {
      const Rank there(r.value() - each.layout->ranks().nth(0).value() + each.first.value());
      RC_ASSERT(check_shard_map(*both, there).has_value());
      RC_ASSERT(held_by(*both, there) == held_by(*each.layout, r));
    }
}

TEST(PlacedLayouts, ranks_that_meet_are_refused) {
  rc::check([] {
    const auto layout = random_layout(random_model());
    const std::array twice{PlacedLayout{layout, Rank(0)}, PlacedLayout{layout, Rank(0)}};
    const auto refused = place_layouts("twice", twice);
    RC_ASSERT(!refused.has_value());
    RC_ASSERT(refused.error().message.find("ranks of it and others meet") != std::string::npos);
  });
}

TEST(PlacedLayouts, no_layout_is_an_error) {
  EXPECT_THAT(place_layouts("none", {}).error().message, HasSubstr("no layout"));
}

}  // namespace
}  // namespace reshard
