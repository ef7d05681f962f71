// SPDX-License-Identifier: Apache-2.0
// Protects: rates are max-min fair, and what is done is done on time.
#include "reshard/simulate/fair_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace reshard::simulate {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(FairShare, a_flow_that_is_held_up_elsewhere_leaves_its_share_to_others) {
  const std::vector<ResourceUse> wide{{0, 1}}, both{{0, 1}, {1, 1}}, narrow{{1, 1}};
  FairShare share({10, 4});
  share.begin(0, wide, 16);
  share.begin(1, both, 2);
  share.begin(2, narrow, 8);
  EXPECT_THAT(share.rates(), ElementsAre(8, 2, 2));
  EXPECT_DOUBLE_EQ(share.next(), 1);
  ASSERT_EQ(share.advance(1).size(), 1U);
  EXPECT_THAT(share.rates(), ElementsAre(10, 4));
}

TEST(FairShare, weights_say_how_much_of_a_resource_a_unit_takes) {
  const std::vector<ResourceUse> light{{0, 1}}, heavy{{0, 3}};
  FairShare share({8});
  share.begin(0, light, 1);
  share.begin(1, heavy, 1);
  EXPECT_THAT(share.rates(), ElementsAre(2, 2));
}

TEST(FairShare, what_uses_nothing_or_has_no_units_is_done_at_once) {
  const std::vector<ResourceUse> none, one{{0, 1}};
  FairShare share({8});
  share.begin(7, none, 5);
  share.begin(3, one, 0);
  EXPECT_EQ(share.next(), 0);
  const auto& done = share.advance(0);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].id, 3U);
  EXPECT_TRUE(share.idle());
}

TEST(FairShare, a_long_step_reports_when_each_was_done) {
  const std::vector<ResourceUse> uses{{0, 1}};
  FairShare share({4});
  share.begin(0, uses, 6);
  share.begin(1, uses, 2);
  const auto& done = share.advance(10);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_THAT(done[0].after, DoubleEq(1));
  EXPECT_THAT(done[1].after, DoubleEq(3));  // what becomes free is not used before the next call
}

RC_GTEST_PROP(FairShare, every_activity_is_among_the_fastest_of_some_full_resource, ()) {
  const auto resources = *rc::gen::inRange<std::size_t>(1, 8);
  std::vector<double> rates;
  for (std::size_t r = 0; r < resources; ++r) rates.push_back(*rc::gen::inRange(1, 100));
  std::vector<std::vector<ResourceUse>> uses(*rc::gen::inRange<std::size_t>(1, 12));
  FairShare share(rates);
  for (std::uint32_t a = 0; a < uses.size(); ++a) {
    const auto first = *rc::gen::inRange<std::size_t>(0, resources);
    const auto count = *rc::gen::inRange<std::size_t>(1, resources + 1);
    for (std::size_t i = 0; i < count; ++i)
      uses[a].push_back({static_cast<std::uint32_t>((first + i) % resources),
                         static_cast<double>(*rc::gen::inRange(1, 5))});
    share.begin(a, uses[a], 1);
  }
  const std::vector<double> got = share.rates();
  std::vector<double> used(resources, 0), fastest(resources, 0);
  for (std::size_t a = 0; a < uses.size(); ++a)
    for (const ResourceUse& use : uses[a]) {
      used[use.resource] += use.weight * got[a];
      fastest[use.resource] = std::max(fastest[use.resource], got[a]);
    }
  for (std::size_t r = 0; r < resources; ++r) RC_ASSERT(used[r] <= rates[r] * (1 + 1e-9));
  for (std::size_t a = 0; a < uses.size(); ++a)
    RC_ASSERT(std::ranges::any_of(uses[a], [&](const ResourceUse& use) {
      return used[use.resource] >= rates[use.resource] * (1 - 1e-9) &&
             got[a] >= fastest[use.resource] * (1 - 1e-9);
    }));
}

}  // namespace
}  // namespace reshard::simulate
