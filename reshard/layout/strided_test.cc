// SPDX-License-Identifier: Apache-2.0
// Protects: a StridedCopy moves exactly the elements of the box, however it is merged, packed or
// permuted.
#include "reshard/layout/strided.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <numeric>
#include <vector>

namespace reshard {
namespace {

/// byte of destination -> byte of source, from the definition of Strided.
std::map<Index, Index> by_element(const Dims& shape, const Strided& src, const Strided& dst,
                                  Index bytes) {
  std::map<Index, Index> moves;
  for (Index e = 0; e < volume(shape); ++e) {
    Index rest = e, s = src.offset, d = dst.offset;
    for (int i = shape.size() - 1; i >= 0; --i) {
      s += rest % shape[i] * src.strides[i];
      d += rest % shape[i] * dst.strides[i];
      rest /= shape[i];
    }
    for (Index b = 0; b < bytes; ++b) moves[d * bytes + b] = s * bytes + b;
  }
  return moves;
}

std::map<Index, Index> by_runs(const StridedCopy& copy) {
  std::map<Index, Index> moves;
  for_each_run(copy, [&](Index s, Index d, Index n) {
    for (Index b = 0; b < n; ++b) RC_ASSERT(moves.emplace(d + b, s + b).second);
  });
  return moves;
}

/// A box of `shape` somewhere inside a tensor whose dimensions are stored in a random order.
Strided any_place(const Dims& shape) {
  std::vector<int> order(static_cast<std::size_t>(shape.size()));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(*rc::gen::inRange<int>(0, static_cast<int>(i)))]);
  Strided place{0, Dims::filled(shape.size(), 0)};
  Index stride = 1;
  for (int i : order) {
    const Index before = *rc::gen::inRange<Index>(0, 2), after = *rc::gen::inRange<Index>(0, 2);
    place.strides[i] = stride;
    place.offset += before * stride;
    stride *= before + shape[i] + after;
  }
  return place;
}

Dims any_shape() {
  Dims shape;
  const int n = *rc::gen::inRange(0, 4);
  for (int i = 0; i < n; ++i) shape.push_back(*rc::gen::inRange<Index>(1, 4));
  return shape;
}

RC_GTEST_PROP(StridedCopy, moves_each_element_once, ()) {
  const Dims shape = any_shape();
  const Strided src = any_place(shape), dst = any_place(shape);
  const int bytes = *rc::gen::element(1, 2, 4);
  const auto copy = make_copy(shape, src, dst, bytes * 8);
  RC_ASSERT(copy.has_value());
  RC_ASSERT(copy->bytes() == volume(shape) * bytes);
  RC_ASSERT(by_runs(*copy) == by_element(shape, src, dst, bytes));
}

RC_GTEST_PROP(StridedCopy, reversed_moves_each_element_back, ()) {
  const Dims shape = any_shape();
  const auto copy = *make_copy(shape, any_place(shape), any_place(shape), 16);
  std::map<Index, Index> back;
  for (auto [d, s] : by_runs(copy)) back[s] = d;
  RC_ASSERT(by_runs(reversed(copy)) == back);
  RC_ASSERT(reversed(reversed(copy)) == copy);
}

RC_GTEST_PROP(StridedCopy, a_widening_copy_is_the_copy_of_elements, ()) {
  const Dims shape = any_shape();
  const Strided src = any_place(shape), dst = any_place(shape);
  const auto elements = by_element(shape, src, dst, 1);
  const auto copy = make_widening_copy(shape, src, dst, 4, 2);
  std::map<Index, Index> found;
  for_each_run(copy, [&](Index s, Index d, Index bytes) {
    for (Index i = 0; i < bytes / 2; ++i) found[d / 2 + i] = s / 4 + i;
  });
  RC_ASSERT(found == elements);
  RC_ASSERT(copy.bytes() == volume(shape) * 2);
  RC_ASSERT(reversed(copy) == make_widening_copy(shape, dst, src, 2, 4) || copy.num_loops > 1);
}

RC_GTEST_PROP(StridedCopy, a_merged_copy_has_the_same_bytes_in_the_same_order, ()) {
  const Dims shape = any_shape();
  const auto copy = *make_copy(shape, any_place(shape), any_place(shape), 16);
  RC_ASSERT(merged(copy) == copy);
  // Runs are cut into shorter ones, and every loop into two.
  StridedCopy cut = copy;
  if (cut.num_loops < 2) {
    cut.num_loops = 0;
    for (int i = 0; i < copy.num_loops; ++i) {
      const auto loop = copy.loops[static_cast<std::size_t>(i)];
      cut.loops[static_cast<std::size_t>(cut.num_loops++)] = {1, loop.src_stride * loop.count,
                                                              loop.dst_stride * loop.count};
      cut.loops[static_cast<std::size_t>(cut.num_loops++)] = loop;
    }
    cut.loops[static_cast<std::size_t>(cut.num_loops++)] = {cut.run_bytes / 2, 2, 2};
    if (cut.run_bytes > 0) cut.run_bytes = 2;
  }
  RC_ASSERT(merged(cut) == copy);
}

TEST(StridedCopy, a_merged_widening_copy_has_longer_runs) {
  StridedCopy copy = make_widening_copy({4}, {0, {1}}, {0, {1}}, 2, 4);
  copy.num_loops = 1;
  copy.loops[0] = {3, 8, 16};
  const StridedCopy whole = make_widening_copy({12}, {0, {1}}, {0, {1}}, 2, 4);
  EXPECT_EQ(merged(copy), whole);
}

TEST(StridedCopy, contiguous_boxes_are_one_run) {
  const auto c = *make_copy({4, 6}, {0, {6, 1}}, {24, {6, 1}}, 16);
  EXPECT_EQ(c.num_loops, 0);
  EXPECT_EQ(to_string(c), "0->48 run 48");
}

TEST(StridedCopy, a_column_slice_is_one_loop_of_rows) {
  const auto c = *make_copy({2048, 96}, {0, {768, 1}}, {0, {96, 1}}, 16);
  EXPECT_EQ(to_string(c), "0->0 run 192 x 2048(+1536,+192)");
}

TEST(StridedCopy, four_bit_elements_need_whole_bytes) {
  EXPECT_TRUE(make_copy({2, 4}, {0, {8, 1}}, {0, {4, 1}}, 4));
  EXPECT_FALSE(make_copy({2, 3}, {0, {8, 1}}, {0, {3, 1}}, 4));
  EXPECT_FALSE(make_copy({4}, {1, {1}}, {0, {1}}, 4));
}

TEST(StridedCopy, an_empty_box_moves_nothing) {
  const auto c = *make_copy({0, 4}, {0, {4, 1}}, {0, {4, 1}}, 16);
  int runs = 0;
  for_each_run(c, [&](Index, Index, Index) { ++runs; });
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(c.bytes(), 0);
}

}  // namespace
}  // namespace reshard
