// SPDX-License-Identifier: Apache-2.0
// Protects: a clipped copy writes exactly the bytes in its range, and the parts of a copy cover it
// exactly once.
#include "reshard/layout/clip.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace reshard {
namespace {

using Bytes = std::map<Index, Index>;  // destination byte -> source byte

void add(const StridedCopy& copy, Bytes& out) {
  for_each_run(copy, [&](Index s, Index d, Index n) {
    for (Index b = 0; b < n; ++b) RC_ASSERT(out.emplace(d + b, s + b).second);
  });
}

/// A box of a row-major destination read from a permuted or row-major source.
StridedCopy any_copy() {
  Dims shape, outer;
  const int n = *rc::gen::inRange(1, 4);
  for (int i = 0; i < n; ++i) {
    shape.push_back(*rc::gen::inRange<Index>(1, 5));
    outer.push_back(shape[i] + *rc::gen::inRange<Index>(0, 3));
  }
  Dims src = row_major(outer);
  if (n > 1 && *rc::gen::arbitrary<bool>()) std::swap(src[0], src[n - 1]);
  return *make_copy(shape, {*rc::gen::inRange<Index>(0, 4), src},
                    {*rc::gen::inRange<Index>(0, 4), row_major(outer)}, 16);
}

RC_GTEST_PROP(Clip, blocks_get_exactly_their_bytes, ()) {
  const StridedCopy copy = any_copy();
  Bytes all, joined;
  add(copy, all);
  const Interval span = destination_span(copy);
  RC_ASSERT(all.begin()->first == span.begin() && all.rbegin()->first == span.end() - 1);
  const Index block = *rc::gen::inRange<Index>(1, 40);
  for (Index at = 0; at < span.end(); at += block) {
    std::vector<StridedCopy> parts;
    clip_destination(copy, at, at + block, parts);
    Bytes mine;
    for (const StridedCopy& p : parts) add(p, mine);
    for (const auto& [d, s] : mine) RC_ASSERT(at <= d && d < at + block);
    joined.insert(mine.begin(), mine.end());
  }
  RC_ASSERT(joined == all);
}

RC_GTEST_PROP(Clip, parts_of_a_copy_have_every_byte_once, ()) {
  const StridedCopy copy = any_copy();
  Bytes all, joined;
  add(copy, all);
  const Index n = *rc::gen::inRange<Index>(1, 6);
  for (Index i = 0; i < n; ++i) add(part_of_copy(copy, i, n), joined);
  RC_ASSERT(joined == all);
}

}  // namespace
}  // namespace reshard
