// SPDX-License-Identifier: Apache-2.0
// Protects: a clipped copy writes exactly the bytes in its range, and units of work cover a copy
// exactly once.
#include "reshard/exec/clip.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "reshard/exec/direct/copy_units.h"

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

RC_GTEST_PROP(CopyUnits, every_byte_is_in_one_unit, ()) {
  std::vector<CopyTask> tasks;
  std::vector<std::size_t> groups;
  std::multimap<const std::byte*, StridedCopy> want, got;
  const int n = *rc::gen::inRange(0, 6);
  static std::byte memory[64];
  for (int i = 0; i < n; ++i) {
    tasks.push_back({any_copy(), memory, memory + i});
    groups.push_back(i == 0 ? 0 : groups.back() + (*rc::gen::arbitrary<bool>() ? 1 : 0));
  }
  const direct::CopyUnits units =
      direct::make_units(tasks, groups, *rc::gen::inRange<Index>(1, 100));
  RC_ASSERT(units.first.size() == units.size() + 1);
  std::map<std::byte*, Bytes> before, after;
  Index total = 0;
  for (const CopyTask& t : tasks) add(t.copy, before[t.dst]);
  for (const CopyTask& t : units.tasks) add(t.copy, after[t.dst]);
  for (Index b : units.bytes) total += b;
  RC_ASSERT(before == after);
  for (const CopyTask& t : tasks) total -= t.copy.bytes();
  RC_ASSERT(total == 0);
}

}  // namespace
}  // namespace reshard
