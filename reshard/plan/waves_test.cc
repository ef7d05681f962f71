// SPDX-License-Identifier: Apache-2.0
// Protects: plans of a subset of tensors, and the groups in which tensors are moved through little
// memory.
#include "reshard/plan/waves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/check.h"
#include "reshard/plan/planner.h"
#include "reshard/plan/reference.h"

namespace reshard {
namespace {

using Waves = std::vector<std::vector<TensorId>>;

StagedSlots random_staged(std::shared_ptr<const ModelLayout> layout) {
  StagedSlots staged{layout, {}};
  for (Index i = 0; i < layout->num_slots(); ++i)
    if (*rc::gen::inRange(0, 3) > 0) staged.slots.emplace_back(static_cast<SlotId::rep>(i));
  return staged;
}

/// The wave of each tensor, -1 of those in none.
std::vector<int> wave_of(const Waves& waves, Index tensors) {
  std::vector<int> out(static_cast<std::size_t>(tensors), -1);
  for (std::size_t w = 0; w < waves.size(); ++w)
    for (const TensorId id : waves[w]) {
      RC_ASSERT(out[id.index()] == -1);
      out[id.index()] = static_cast<int>(w);
    }
  return out;
}

/// Tensors of a slot, each once.
std::set<TensorId> tensors_of(const ModelLayout& layout, SlotId id) {
  std::set<TensorId> out;
  for (const Section& section : layout.slot(id).sections)
    for (const PlacedBox& p : section.parts) out.insert(p.tensor);
  return out;
}

/// True if slots join all these tensors.
bool are_one(const std::vector<TensorId>& tensors, const std::set<std::set<TensorId>>& slots) {
  std::set<TensorId> reached{tensors[0]};
  for (std::size_t round = 0; round < slots.size(); ++round)
    for (const std::set<TensorId>& slot : slots)
      if (std::any_of(slot.begin(), slot.end(), [&](TensorId t) { return reached.contains(t); }))
        reached.insert(slot.begin(), slot.end());
  return reached.size() == tensors.size();
}

RC_GTEST_PROP(Waves, keep_slots_together_and_ranks_below_the_cap, ()) {
  const auto model = random_model();
  const std::vector<StagedSlots> sides{random_staged(random_layout(model)),
                                       random_staged(random_layout(model))};
  const Index cap = *rc::gen::inRange<Index>(0, 200);
  const Waves waves = waves_of(sides, cap);
  RC_ASSERT(waves == waves_of(sides, cap));
  const std::vector<int> wave = wave_of(waves, model->size());
  std::vector<bool> staged(wave.size());
  std::vector<std::map<Rank, Index>> bytes(waves.size());
  std::vector<std::set<std::set<TensorId>>> slots(waves.size());
  for (const StagedSlots& side : sides) {
    for (const SlotId id : side.slots) {
      const std::set<TensorId> tensors = tensors_of(*side.layout, id);
      for (const TensorId t : tensors) {
        staged[t.index()] = true;
        RC_ASSERT(wave[t.index()] == wave[tensors.begin()->index()]);
      }
      const int w = wave[tensors.begin()->index()];
      RC_ASSERT(w >= 0);
      const Slot& slot = side.layout->slot(id);
      side.layout->rank_set(slot.ranks).for_each([&](Rank r) {
        bytes[static_cast<std::size_t>(w)][r] +=
            volume(side.layout->local_shape(id, r)) * bits(slot.dtype) / 8;
      });
      slots[static_cast<std::size_t>(w)].insert(tensors);
    }
  }
  for (std::size_t t = 0; t < wave.size(); ++t)
    RC_ASSERT((wave[t] >= 0) == static_cast<bool>(staged[t]));
  for (std::size_t w = 0; w < waves.size(); ++w) {
    RC_ASSERT(std::is_sorted(waves[w].begin(), waves[w].end()));
    RC_ASSERT((w == 0 || waves[w - 1].front() < waves[w].front()));
    for (const auto& [rank, b] : bytes[w]) RC_ASSERT((b <= cap || are_one(waves[w], slots[w])));
  }
}

TEST(Waves, layers_follow_each_other_and_a_great_cap_takes_all) {
  const ModelConfig c = tiny_dense();
  const auto layout = layout_of("vllm:tp=2", model_of(c), c);
  StagedSlots staged{layout, {}};
  for (Index i = 0; i < layout->num_slots(); ++i) {
    const SlotId id(static_cast<SlotId::rep>(i));
    if (layout->slot(id).name.ends_with("qkv_proj.weight")) staged.slots.push_back(id);
  }
  // Each rank's [32, 16] of bf16.
  EXPECT_EQ(waves_of(std::span(&staged, 1), 1024).size(), 4);
  EXPECT_EQ(waves_of(std::span(&staged, 1), 2048).size(), 2);
  EXPECT_EQ(waves_of(std::span(&staged, 1), 1)[0].size(), 3);
  EXPECT_EQ(waves_of(std::span(&staged, 1), 1 << 20).size(), 1);
  EXPECT_TRUE(waves_of({}, 1).empty());
}

RC_GTEST_PROP(PlanOfSomeTensors, moves_those_and_no_others, ()) {
  const auto model = random_model();
  const auto source = random_layout(model), target = random_layout(model);
  PlanOptions options;
  for (const CanonicalTensor& t : model->tensors())
    if (*rc::gen::inRange(0, 2) == 0) options.only.insert(t.name);
  RC_PRE(!options.only.empty());
  const Planner planner = *Planner::make(source, target, options);
  std::map<std::pair<Rank, reference::Element>, Rank> got;
  planner.ranks().for_each([&](Rank r) {
    const RankPlan part = planner.rank_plan(r);
    const auto ok = check_rank_plan(planner, part, {}, options.only);
    if (!ok) RC_FAIL(ok.error().message);
    for (const auto* list : {&part.recvs, &part.locals})
      for (const Transfer& t : *list)
        reference::for_each_element(*model, t.tensor, t.box, [&](reference::Element e) {
          got.emplace(std::pair(r, e), t.src);
        });
  });
  std::size_t wanted = 0;
  for (const auto& [to, from] : reference::plan(*source, *target)) {
    const bool moves = options.only.contains((*model)[to.second.first].name);
    RC_ASSERT(planner.moves(to.second.first) == moves);
    RC_ASSERT(got.contains(to) == moves);
    if (moves) RC_ASSERT(from.contains(got.at(to)));
    wanted += moves ? 1 : 0;
  }
  RC_ASSERT(got.size() == wanted);
  const bool all = options.only.size() == static_cast<std::size_t>(model->size());
  RC_ASSERT(all || planner.digest() != Planner::make(source, target)->digest());
}

TEST(PlanOfSomeTensors, needs_no_partner_for_the_others_and_knows_every_name) {
  const ModelConfig c = tiny_deepseek();
  const auto model = model_of(c);
  const auto source = layout_of("megatron:tp=2,mtp=0", model, c);
  const auto target = layout_of("hf", model, c);
  EXPECT_FALSE(Planner::make(source, target));
  PlanOptions options;
  options.only = {"model.norm.weight"};
  EXPECT_TRUE(Planner::make(source, target, options));
  options.only = {"model.norms.weight"};
  const auto planner = Planner::make(source, target, options);
  ASSERT_FALSE(planner);
  EXPECT_EQ(planner.error().message,
            "tensor 'model.norms.weight' is selected but not in the model (did you mean "
            "'model.norm.weight'?)");
  options.only.clear();
  options.ignore = {"mtp"};
  const auto unknown = Planner::make(source, target, options);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message, "tensor 'mtp' is ignored but not in the model");
}

}  // namespace
}  // namespace reshard
