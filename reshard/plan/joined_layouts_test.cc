// SPDX-License-Identifier: Apache-2.0
// Protects: a joined layout gives each rank what its own part gives it, plans towards it are those
// of every part, and parts that one plan cannot serve are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/place_layouts.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/local_text_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/check.h"

namespace reshard {
namespace {

using Layouts = std::vector<std::shared_ptr<const ModelLayout>>;

Layouts layouts_of(const ModelConfig& config, const std::vector<std::string>& texts) {
  Layouts out;
  const auto model = model_of(config);
  for (const std::string& text : texts) out.push_back(layout_of(text, model, config));
  return out;
}

std::string refusal(const Layouts& parts) {
  const auto joined = join_layouts(parts);
  return joined ? "" : joined.error().message;
}

/// A copy without some tensors, in whose place it has padding.
std::shared_ptr<const ModelLayout> without(const ModelLayout& layout, const std::string& tensor) {
  LayoutBuilder out("part", layout.shared_model(), layout);
  for (Index i = 0; i < layout.num_slots(); ++i) {
    Slot slot = layout.slot(SlotId(static_cast<SlotId::rep>(i)));
    for (Section& section : slot.sections)
      slot.padded |= std::erase_if(section.parts, [&](const PlacedBox& part) {
                       return layout.model()[part.tensor].name == tensor;
                     }) > 0;
    out.add(std::move(slot));
  }
  return std::make_shared<const ModelLayout>(*std::move(out).finish());
}

TEST(JoinedLayouts, give_each_rank_what_its_part_gives) {
  for (const ModelConfig& config : tiny_models()) {
    const Layouts parts =
        layouts_of(config, {"vllm:tp=2", "vllm:tp=2,pp=2,offset=4", "vllm:tp=4,offset=8"});
    const auto joined = join_layouts(parts);
    ASSERT_TRUE(joined) << joined.error().message;
    EXPECT_EQ(joined->name(), "vllm:tp=2 + vllm:offset=4,pp=2,tp=2 + vllm:offset=8,tp=4");
    EXPECT_EQ(joined->ranks(), parts[0]->ranks() | parts[1]->ranks() | parts[2]->ranks());
    for (const auto& part : parts)
      part->ranks().for_each([&](Rank r) {
        const auto mine = part->slots_of(r), there = joined->slots_of(r);
        ASSERT_EQ(mine.size(), there.size());
        for (std::size_t i = 0; i < mine.size(); ++i) {
          const std::string& name = part->slot(mine[i]).name;
          EXPECT_EQ(joined->slot(there[i]).name, name);
          EXPECT_EQ(local_text(*joined, name, r.value()), local_text(*part, name, r.value()));
        }
        EXPECT_TRUE(check_shard_map(*joined, r));
      });
  }
}

Layouts with(Layouts parts, std::shared_ptr<const ModelLayout> part) {
  parts.push_back(std::move(part));
  return parts;
}

/// The bytes that a plan gives a rank.
Index received(const Planner& planner, Rank r) {
  Index bytes = 0;
  planner.for_each_delivered_bytes(r, [&](Rank, Index n, const RelayHop&) { bytes += n; });
  return bytes;
}

RC_GTEST_PROP(JoinedLayouts, are_planned_as_their_parts_are, ()) {
  const auto model = random_model();
  const auto source = random_layout(model);
  Layouts parts;
  RankSet taken;
  for (int i = 0; i < 8; ++i) {
    const auto part = random_layout(model);
    const bool is_free = (taken & part->ranks()).empty();
    if (!is_free) {
      RC_ASSERT(!join_layouts(with(parts, part)).has_value());
      continue;
    }
    parts.push_back(part);
    taken = taken | part->ranks();
  }
  RC_TAG(parts.size());
  const auto joined = join_layouts(parts);
  RC_ASSERT(joined.has_value());
  const auto whole = Planner::make(source, std::make_shared<const ModelLayout>(*joined));
  RC_ASSERT(whole.has_value());
  for (const Rank r : whole->ranks().members())
    RC_ASSERT(check_rank_plan(*whole, whole->rank_plan(r)).has_value());
  for (const auto& part : parts) {
    const auto alone = Planner::make(source, part);
    RC_ASSERT(alone.has_value());
    for (const Rank r : part->ranks().members())
      RC_ASSERT(received(*whole, r) == received(*alone, r));
  }
}

TEST(JoinedLayouts, omit_what_all_parts_omit) {
  const ModelConfig config = tiny_glm();
  const Layouts both = layouts_of(config, {"vllm:tp=2,mtp=0", "vllm:tp=2,mtp=0,offset=2"});
  const Layouts one = layouts_of(config, {"vllm:tp=2,mtp=0", "vllm:tp=2,mtp=1,offset=2"});
  const auto none = join_layouts(both), some = join_layouts(one);
  ASSERT_TRUE(none && some);
  Index omitted = 0;
  for (Index i = 0; i < none->model().size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    omitted += none->omits(id) ? 1 : 0;
    EXPECT_EQ(none->omits(id), both[0]->omits(id));
    EXPECT_EQ(some->omits(id), one[0]->omits(id) && one[1]->omits(id));
  }
  EXPECT_GT(omitted, 0);
}

TEST(JoinedLayouts, name_what_one_plan_cannot_serve) {
  EXPECT_EQ(refusal({}), "there is no layout to join");
  EXPECT_EQ(refusal(layouts_of(tiny_moe(), {"vllm:tp=4", "vllm:tp=2,offset=3"})),
            "vllm:tp=4 and vllm:offset=3,tp=2 both have rank 3; give one of them another offset");
  EXPECT_EQ(refusal({layouts_of(tiny_moe(), {"vllm:tp=2"})[0],
                     layouts_of(tiny_dense(), {"vllm:tp=2,offset=2"})[0]}),
            "vllm:tp=2 and vllm:offset=2,tp=2 are layouts of different models");
  Layouts parts = layouts_of(tiny_dense(), {"vllm:tp=2", "megatron:tp=2,offset=2"});
  EXPECT_THAT(refusal(layouts_of(tiny_dense(), {"vllm:tp=2", "vllm:tp=2,dtype=float32,offset=2"})),
              testing::HasSubstr("a layout must store a tensor in one form"));
  parts[1] = without(*parts[1], "model.norm.weight");
  EXPECT_EQ(refusal(parts),
            "tensor 'model.norm.weight' is in vllm:tp=2 but not in part, so one plan cannot serve "
            "both");
}

}  // namespace
}  // namespace reshard
