// SPDX-License-Identifier: Apache-2.0
// Protects: the order of boxes, shapes whose dimensions are merged, and regions cut by regions.
#include "reshard/index/box.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/index/region.h"

namespace reshard {
namespace {

Interval any_interval() {
  const Index begin = *rc::gen::inRange<Index>(0, 4);
  return Interval{begin, begin + *rc::gen::inRange<Index>(1, 4)};
}

Box any_box() {
  return *rc::gen::arbitrary<bool>() ? Box{any_interval()} : Box{any_interval(), any_interval()};
}

RC_GTEST_PROP(Box, before_is_a_strict_total_order, ()) {
  const Box a = any_box(), b = any_box(), c = any_box();
  RC_ASSERT(!before(a, a));
  RC_ASSERT((before(a, b) || before(b, a)) == !(a == b));
  RC_ASSERT(!(before(a, b) && before(b, a)));
  if (before(a, b) && before(b, c)) RC_ASSERT(before(a, c));
}

TEST(Box, fewer_dimensions_come_first_then_where_a_dimension_begins) {
  EXPECT_TRUE(before(Box{{5, 9}}, Box{{0, 1}, {0, 1}}));
  EXPECT_TRUE(before(Box{{0, 9}, {3, 4}}, Box{{1, 2}, {0, 1}}));
  EXPECT_TRUE(before(Box{{0, 2}, {3, 4}}, Box{{0, 9}, {0, 1}}));
  EXPECT_TRUE(before(Box{{0, 2}, {0, 1}}, Box{{0, 2}, {3, 4}}));
}

TEST(Dims, merged_dimensions_are_multiplied) {
  const Dims shape{2, 3, 5, 7};
  EXPECT_EQ(merged_shape(shape, MergedDims{}), shape);
  EXPECT_EQ(merged_shape(shape, MergedDims{0b001}), (Dims{6, 5, 7}));
  EXPECT_EQ(merged_shape(shape, MergedDims{0b010}), (Dims{2, 15, 7}));
  EXPECT_EQ(merged_shape(shape, MergedDims{0b101}), (Dims{6, 35}));
  EXPECT_EQ(merged_shape(shape, MergedDims{0b111}), (Dims{210}));
  EXPECT_EQ(merged_shape(Dims{}, MergedDims{0b111}), Dims{});
}

RC_GTEST_PROP(Region, intersection_is_pointwise_and, ()) {
  Region a, b;
  for (int i = 0; i < 3; ++i) {
    a.add(Box{any_interval(), any_interval()});
    b.add(Box{any_interval(), any_interval()});
  }
  const Region both = intersect(a, b);
  const auto in = [](const Region& r, const Dims& p) {
    for (const Box& box : r.boxes())
      if (contains(box, p)) return true;
    return false;
  };
  Index points = 0;
  for (Index i = 0; i < 8; ++i)
    for (Index j = 0; j < 8; ++j) {
      const Dims p{i, j};
      RC_ASSERT(in(both, p) == (in(a, p) && in(b, p)));
      points += in(both, p);
    }
  RC_ASSERT(both.volume() == points);
}

}  // namespace
}  // namespace reshard
