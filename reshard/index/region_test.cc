// SPDX-License-Identifier: Apache-2.0
// Protects: the post-conditions of interval.h, box.h and region.h, point by point.
#include "reshard/index/region.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace reshard {
namespace {

constexpr Index kSide = 7;

Interval any_interval() {
  const Index begin = *rc::gen::inRange<Index>(0, kSide);
  return Interval{begin, *rc::gen::inRange<Index>(begin, kSide + 1)};
}

Box any_box() { return Box{any_interval(), any_interval()}; }

template <class F>
void for_each_point(F f) {
  for (Index i = -1; i <= kSide; ++i)
    for (Index j = -1; j <= kSide; ++j) f(Dims{i, j});
}

bool in(const Region& r, const Dims& p) {
  int hits = 0;
  for (const Box& b : r.boxes()) hits += contains(b, p);
  RC_ASSERT(hits <= 1);
  return hits == 1;
}

RC_GTEST_PROP(Interval, intersection_is_pointwise_and, ()) {
  const Interval a = any_interval(), b = any_interval(), c = intersect(a, b);
  for (Index i = -1; i <= kSide; ++i)
    RC_ASSERT(contains(c, i) == (contains(a, i) && contains(b, i)));
}

RC_GTEST_PROP(Box, intersection_and_containment_are_pointwise, ()) {
  const Box a = any_box(), b = any_box(), c = intersect(a, b);
  bool all = true;
  for_each_point([&](const Dims& p) {
    RC_ASSERT(contains(c, p) == (contains(a, p) && contains(b, p)));
    all &= !contains(b, p) || contains(a, p);
  });
  RC_ASSERT(contains(a, b) == all);
  RC_ASSERT(shift(a, Dims{3, 4}).volume() == a.volume());
}

RC_GTEST_PROP(Box, difference_is_pointwise_and_disjoint, ()) {
  const Box a = any_box(), b = any_box();
  const auto parts = difference(a, b);
  for_each_point([&](const Dims& p) {
    int hits = 0;
    for (const Box& part : parts) hits += contains(part, p);
    RC_ASSERT(hits == (contains(a, p) && !contains(b, p) ? 1 : 0));
  });
}

RC_GTEST_PROP(Region, add_and_subtract_are_pointwise, ()) {
  Region r;
  std::vector<std::pair<bool, Box>> steps;
  const int n = *rc::gen::inRange(0, 7);
  for (int i = 0; i < n; ++i) steps.emplace_back(*rc::gen::arbitrary<bool>(), any_box());
  for (const auto& [add, box] : steps) add ? r.add(box) : r.subtract(box);
  for_each_point([&](const Dims& p) {
    bool want = false;
    for (const auto& [add, box] : steps)
      if (contains(box, p)) want = add;
    RC_ASSERT(in(r, p) == want);
  });
}

RC_GTEST_PROP(Region, same_points_does_not_depend_on_the_cut, ()) {
  std::vector<Box> boxes;
  for (int i = 0; i < 4; ++i) boxes.push_back(any_box());
  Region forward, backward;
  for (const Box& b : boxes) forward.add(b);
  for (auto it = boxes.rbegin(); it != boxes.rend(); ++it) backward.add(*it);
  RC_ASSERT(same_points(forward, backward));
  if (!forward.empty()) {
    backward.subtract(Box{{forward.boxes()[0][0].begin(), forward.boxes()[0][0].begin() + 1},
                          {forward.boxes()[0][1].begin(), forward.boxes()[0][1].begin() + 1}});
    RC_ASSERT(!same_points(forward, backward));
  }
}

TEST(Box, empty_boxes_of_one_rank_are_equal) {
  EXPECT_EQ((Box{{2, 2}, {0, 5}}), (Box{{0, 0}, {0, 0}}));
  EXPECT_TRUE((Box{{0, 3}, {1, 1}}).empty());
  EXPECT_FALSE(Box{}.empty());
  EXPECT_EQ(Box{}.volume(), 1);
  EXPECT_EQ((Box{{2, 2}, {0, 5}}).volume(), 0);
}

TEST(Box, prints_as_the_documents_write_it) {
  EXPECT_EQ(to_string(Box{{0, 128}, {0, 512}}), "[0,128)x[0,512)");
  EXPECT_EQ(to_string(Box{}), "[]");
  EXPECT_EQ(to_string(Region(Box{{0, 2}})), "{[0,2)}");
  EXPECT_EQ(to_string(Dims{2, 3}), "[2, 3]");
}

TEST(Region, touching_boxes_merge) {
  Region r(Box{{0, 2}, {0, 4}});
  r.add(Box{{2, 5}, {0, 4}});
  EXPECT_EQ(r.boxes(), (std::vector<Box>{Box{{0, 5}, {0, 4}}}));
}

}  // namespace
}  // namespace reshard
