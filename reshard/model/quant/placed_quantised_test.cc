// SPDX-License-Identifier: Apache-2.0
// Law: in a quantised layout of several side by side, each rank stores what it stores in its own.
#include "reshard/model/quant/placed_quantised.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

#include "reshard/model/random_layout_testutil.h"

namespace reshard {
namespace {

std::shared_ptr<const QuantisedLayout> quantised(const std::shared_ptr<const ModelLayout>& layout,
                                                 Index block_rows) {
  QuantChoice choice;
  choice.format = {.data = DType::f8_e4m3,
                   .scale = DType::f32,
                   .block_rows = static_cast<std::int32_t>(block_rows),
                   .block_cols = 2,
                   .rule = ScaleRule::exact};
  for (const CanonicalTensor& t : layout->model().tensors()) choice.tensors.insert(t.name);
  auto made = quantise_layout(layout, choice);
  RC_ASSERT(made.has_value());
  return std::make_shared<const QuantisedLayout>(*std::move(made));
}

/// The local tensors of a rank, by name: dtypes, shapes, boxes.
std::string stored_by(const ModelLayout& layout, Rank r) {
  std::string out;
  for (const SlotId id : layout.slots_of(r)) {
    out += layout.slot(id).name + " " + std::string(name(layout.slot(id).dtype)) + " " +
           to_string(layout.local_shape(id, r));
    for (const Fragment& f : layout.local(id, r).fragments)
      out += " " + std::to_string(f.tensor.value()) + to_string(f.box);
    out += "\n";
  }
  return out;
}

RC_GTEST_PROP(PlacedQuantised, each_rank_stores_what_it_stores_in_its_own_layout, ()) {
  const auto model = random_matrices();
  const auto a = random_layout(model), b = random_layout(model);
  const Index block_rows = *rc::gen::inRange(1, 3);
  const auto base = [](const ModelLayout& x) { return x.ranks().nth(0).value(); };
  const Rank first_of_b(static_cast<Rank::rep>(a->ranks().members().back().value() - base(*a) + 1));
  const std::array placed{PlacedQuantisedLayout{quantised(a, block_rows), Rank(0)},
                          PlacedQuantisedLayout{quantised(b, block_rows), first_of_b}};
  const auto both = place_layouts("both", placed);
  if (!both) RC_FAIL(both.error().message);
  for (const PlacedQuantisedLayout& each : placed)
    for (const Rank r : each.layout->stored->ranks().members()) {
      const Rank there(r.value() - base(*each.layout->stored) + each.first.value());
      RC_ASSERT(check_shard_map(*both->stored, there).has_value());
      RC_ASSERT(stored_by(*both->stored, there) == stored_by(*each.layout->stored, r));
    }
}

TEST(PlacedQuantised, layouts_that_are_quantised_in_different_ways_are_refused) {
  rc::check([] {
    const auto model = random_matrices();
    const auto layout = random_layout(model);
    const std::array placed{PlacedQuantisedLayout{quantised(layout, 1), Rank(0)},
                            PlacedQuantisedLayout{quantised(layout, 2), Rank(100)}};
    const auto refused = place_layouts("both", placed);
    RC_ASSERT(!refused.has_value());
    RC_ASSERT(refused.error().code == Code::unsupported);
    RC_ASSERT(refused.error().message.find("in different ways") != std::string::npos);
  });
}

}  // namespace
}  // namespace reshard
