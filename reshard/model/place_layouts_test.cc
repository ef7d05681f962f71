// SPDX-License-Identifier: Apache-2.0
// Law: in a layout that was moved, each rank holds what it held on its rank before.
#include "reshard/model/place_layouts.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/random_layout_testutil.h"

namespace reshard {
namespace {

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

void expect_moved(const ModelLayout& layout, const ModelLayout& moved, Rank first) {
  const Rank::rep by = first.value() - layout.ranks().nth(0).value();
  RC_ASSERT(moved.ranks().size() == layout.ranks().size());
  for (const Rank r : layout.ranks().members()) {
    const Rank there(r.value() + by);
    RC_ASSERT(check_shard_map(moved, there).has_value());
    RC_ASSERT(held_by(moved, there) == held_by(layout, r));
  }
}

RC_GTEST_PROP(MovedLayouts, give_each_rank_what_it_had_elsewhere, ()) {
  const auto layout = random_layout(random_model());
  const Rank first(*rc::gen::inRange(0, 100));
  const auto moved = move_layout(*layout, first);
  RC_ASSERT(moved.has_value());
  expect_moved(*layout, *moved, first);
  // Back again it is the same.
  RC_ASSERT(move_layout(*moved, layout->ranks().nth(0))->digest() == layout->digest());
  RC_ASSERT(!move_layout(*layout, Rank(-1)).has_value());
}

TEST(MovedLayouts, keep_what_is_quantised) {
  const auto model = model_of(tiny_dense());
  const auto quantised = quantise_layout(layout_of("vllm:tp=2", model, tiny_dense()),
                                         {.format = *quant_format_from_name("fp8_channel"),
                                          .tensors = {"model.layers.0.mlp.down_proj.weight"},
                                          .scale_suffix = ""});
  ASSERT_TRUE(quantised);
  const auto moved = move_layout(*quantised, Rank(5));
  ASSERT_TRUE(moved);
  ASSERT_EQ(moved->pairs.size(), quantised->pairs.size());
  for (const auto& [from, to] :
       {std::pair(quantised->values, moved->values), std::pair(quantised->stored, moved->stored)})
    for (const int r : {0, 1}) EXPECT_EQ(held_by(*to, Rank(5 + r)), held_by(*from, Rank(r)));
}

}  // namespace
}  // namespace reshard
