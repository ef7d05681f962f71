// SPDX-License-Identifier: Apache-2.0
// Protects: each rank of a layout of whole blocks has the blocks that its shards overlap, and no
// others, so that it can quantise them alone.
#include "reshard/model/quant/whole_blocks.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "reshard/model/random_layout_testutil.h"

namespace reshard {
namespace {

QuantChoice random_choice(const ModelSpec& model) {
  QuantChoice choice;
  choice.format = {.data = DType::f8_e4m3, .scale = DType::f32};
  choice.format.block_rows = *rc::gen::inRange<int>(0, 4);
  choice.format.block_cols = *rc::gen::inRange<int>(0, 4);
  choice.format.tensor_factor = *rc::gen::arbitrary<bool>();
  choice.grid = BlockGrid::tensor;
  for (const CanonicalTensor& t : model.tensors()) choice.tensors.insert(t.name);
  return choice;
}

/// The blocks that `held` overlaps along a dimension.
Interval blocks_over(Interval held, Index block, Index whole) {
  if (block == 0) return {0, whole};
  Index begin = held.begin(), end = held.end();
  while (begin % block != 0) --begin;
  while (end % block != 0 && end < whole) ++end;
  return {begin, end};
}

std::vector<Fragment> fragments_on(const ModelLayout& layout, Rank r) {
  std::vector<Fragment> out;
  for (const SlotId slot : layout.slots_of(r))
    for (const Fragment& f : layout.local(slot, r).fragments)
      if (f.box.volume() > 0) out.push_back(f);
  return out;
}

RC_GTEST_PROP(WholeBlocks, hold_what_shards_overlap_and_no_more, ()) {
  const auto model = random_matrices();
  const auto layout = random_layout(model);
  const QuantChoice choice = random_choice(*model);
  const QuantFormat& format = choice.format;
  const auto q = quantise_layout(layout, choice);
  if (!q) RC_FAIL(q.error().message);
  const std::vector<bool> all(static_cast<std::size_t>(model->size()), true);
  const auto blocks = whole_blocks(*q, all);
  if (!blocks) RC_FAIL(blocks.error().message);
  const auto made = quantise_layout(*blocks, choice);
  if (!made) RC_FAIL(made.error().message);
  for (const auto& pair : made->pairs) RC_ASSERT(pair.whole && pair.exact);
  layout->ranks().for_each([&](Rank r) {
    std::vector<std::pair<TensorId, Box>> expected, held;
    for (const Fragment& f : fragments_on(*layout, r)) {
      const int n = f.box.rank();
      const Dims& shape = (*model)[f.tensor].shape;
      Box box = f.box;
      const bool factor = format.tensor_factor;
      box = box.with(n - 2, blocks_over(box[n - 2], factor ? 0 : format.block_rows, shape[n - 2]));
      box = box.with(n - 1, blocks_over(box[n - 1], factor ? 0 : format.block_cols, shape[n - 1]));
      if (std::ranges::find(expected, std::pair(f.tensor, box)) == expected.end())
        expected.emplace_back(f.tensor, box);
    }
    for (const Fragment& f : fragments_on(**blocks, r)) held.emplace_back(f.tensor, f.box);
    RC_ASSERT(std::ranges::is_permutation(held, expected));
  });
}

RC_GTEST_PROP(WholeBlocks, count_the_bytes_of_both_ways, ()) {
  const auto model = random_matrices();
  const auto layout = random_layout(model);
  const QuantChoice choice = random_choice(*model);
  const auto q = quantise_layout(layout, choice);
  if (!q) RC_FAIL(q.error().message);
  const std::vector<bool> all(static_cast<std::size_t>(model->size()), true);
  const auto blocks = *whole_blocks(*q, all), matrices = *whole_tensors(*q, all);
  Index halo = 0, held = 0, values = 0, whole = 0;
  for (Index i = 0; i < model->size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    const WholeBlockBytes bytes = whole_block_bytes(*q, id);
    halo += bytes.halo;
    values += volume((*model)[id].shape) * bits((*model)[id].dtype) / 8;
    RC_ASSERT(bytes.between >= volume((*model)[id].shape) * bits((*model)[id].dtype) / 8);
  }
  layout->ranks().for_each([&](Rank r) {
    held += local_bytes(*blocks, r);
    whole += local_bytes(*matrices, r);
  });
  RC_ASSERT(halo == held);
  RC_ASSERT(whole == values);
}

}  // namespace
}  // namespace reshard
