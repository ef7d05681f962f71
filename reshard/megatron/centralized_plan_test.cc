// SPDX-License-Identifier: Apache-2.0
// Protects: whichever ranks plan, every rank gets the same operations or the same error, and no
// rank waits for one that failed.
#include "reshard/megatron/centralized_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/reported/gathered.h"
#include "reshard/model/reported/metadata_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

/// The result of each member of a group of `size`; member r reports for rank r.
std::vector<Result<ReshardPlan>> plans(int size, const ModelLayout& source,
                                       const ModelLayout& target, PlannedBy planned_by) {
  const ModelConfig c = tiny_moe();
  auto group = *InprocGroup::create(size);
  std::vector<Result<ReshardPlan>> out(static_cast<std::size_t>(size));
  const auto ran = run_ranks(size, [&](Rank r) -> Result<> {
    const auto control = RESHARD_TRY(group.control(r));
    RankMetadata src, dst;
    if (source.ranks().contains(r)) src = reported_by(source, c, r);
    if (target.ranks().contains(r)) dst = reported_by(target, c, r);
    out[r.index()] = build_centralized_reshard_plan(
        *control, source.ranks().contains(r) ? &src : nullptr,
        target.ranks().contains(r) ? &dst : nullptr, planned_by, patient());
    return {};
  });
  EXPECT_TRUE(ran.has_value()) << ran.error().message;
  return out;
}

class CentralizedPlan : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(CentralizedPlan, is_the_same_whoever_plans) {
  const ModelConfig c = tiny_moe();
  const auto model = model_of(c);
  const auto source = layout_of(GetParam().first, model, c);
  const auto target = layout_of(GetParam().second, model, c);
  const auto pair = gathered_layouts(reported_by(*source, c), reported_by(*target, c));
  ASSERT_TRUE(pair.has_value()) << pair.error().message;
  const auto planner = Planner::make(pair->source, pair->target, {pair->ignore});
  ASSERT_TRUE(planner.has_value()) << planner.error().message;
  const int size = 9;  // the last ones are idle
  const auto alone = plans(size, *source, *target, PlannedBy::every_rank);
  const auto central = plans(size, *source, *target, PlannedBy::rank_zero);
  for (int r = 0; r < size; ++r) {
    const auto i = static_cast<std::size_t>(r);
    ASSERT_TRUE(alone[i].has_value()) << alone[i].error().message;
    ASSERT_TRUE(central[i].has_value()) << central[i].error().message;
    EXPECT_EQ(*alone[i], *central[i]) << r;
    EXPECT_EQ(*alone[i], replayed_reshard_plan(*planner, Rank(r))) << r;
  }
  EXPECT_EQ(*alone[8], ReshardPlan{});
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, CentralizedPlan,
    ::testing::Values(std::pair("megatron:tp=2,ep=2,vocab_multiple=2",
                                "megatron:tp=4,ep=2,etp=1,vocab_multiple=1"),
                      std::pair("megatron:pp=2,vocab_multiple=4",
                                "megatron:tp=2,vocab_multiple=2,offset=4"),
                      std::pair("megatron:tp=1,ep=2,pp=2,offset=4,vocab_multiple=4",
                                "megatron:ep=1,vocab_multiple=4")));

TEST(CentralizedPlan, errors_are_the_same_on_every_rank) {
  const ModelConfig c = tiny_moe();
  const auto model = model_of(c);
  // Vocabularies padded to different sizes: nobody knows which rows are padding.
  const auto source = layout_of("megatron:tp=2,vocab_multiple=2", model, c);
  const auto target = layout_of("megatron:tp=2,vocab_multiple=64", model, c);
  for (const PlannedBy by : {PlannedBy::every_rank, PlannedBy::rank_zero})
    for (const auto& plan : plans(3, *source, *target, by)) {
      ASSERT_FALSE(plan.has_value());
      EXPECT_EQ(plan.error().code, Code::invalid_argument);
      EXPECT_THAT(plan.error().message, HasSubstr("word_embeddings.weight'"));
      EXPECT_THAT(plan.error().message, HasSubstr("its total shape is"));
    }
}

TEST(CentralizedPlan, a_refused_report_ends_the_wait_of_the_others) {
  auto group = *InprocGroup::create(2);
  std::vector<std::string> said(2);
  const auto ran = run_ranks(2, [&](Rank r) -> Result<> {
    const auto control = RESHARD_TRY(group.control(r));
    RankMetadata mine{r, {}, {}};
    if (r == Rank(1)) {
      ParameterMetadata p;
      p.name = "w";
      p.owner_rank = Rank(5);
      mine.parameters.push_back(p);
    }
    const auto plan =
        build_centralized_reshard_plan(*control, &mine, nullptr, PlannedBy::every_rank, patient());
    said[r.index()] = plan ? "" : plan.error().message;
    return {};
  });
  EXPECT_TRUE(ran.has_value());
  EXPECT_THAT(said[1], HasSubstr("its owner is rank 5"));
  EXPECT_THAT(said[0], HasSubstr("its owner is rank 5"));
}

}  // namespace
}  // namespace reshard
