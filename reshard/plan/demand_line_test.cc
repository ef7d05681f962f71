// SPDX-License-Identifier: Apache-2.0
// Protects: each rank's place on a supply's line, against a list with one entry per rank.
#include "reshard/plan/demand_line.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace reshard {
namespace {

RC_GTEST_PROP(DemandLine, has_the_places_of_a_list_of_all_ranks, ()) {
  std::vector<std::pair<RankSet, Index>> sets;
  std::map<Rank, Index> wanted;
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) {
    RankSet set;
    const auto bytes = *rc::gen::inRange<Index>(1, 4);
    for (int r = *rc::gen::inRange(0, 150), end = r + *rc::gen::inRange(1, 150); r < end;
         r += *rc::gen::element(1, 1, 1, 70))
      set.insert(Rank(r));
    set.for_each([&](Rank r) { wanted[r] += bytes; });
    sets.emplace_back(set, bytes);
  }
  std::vector<std::pair<const RankSet*, Index>> borrowed;
  for (const auto& [set, bytes] : sets) borrowed.emplace_back(&set, bytes);
  std::vector<Index> per_rank(300);
  const DemandLine line(borrowed, per_rank);
  RC_ASSERT(per_rank == std::vector<Index>(300));

  std::map<Rank, Index> begin_of;
  Index bytes = 0;
  for (const auto& [rank, wants] : wanted) {
    begin_of[rank] = bytes;
    RC_ASSERT(line.begin_of(rank) == bytes);
    bytes += wants;
  }
  RC_ASSERT(line.bytes() == bytes);
  const auto begin = *rc::gen::inRange<Index>(0, bytes + 2);
  const auto end = *rc::gen::inRange<Index>(0, bytes + 2);
  std::vector<std::pair<Rank, Index>> overlapping, found;
  for (const auto& [rank, at] : begin_of)
    if (begin < end && at < end && at + wanted[rank] > begin) overlapping.emplace_back(rank, at);
  line.for_each_overlap(begin, end, [&](Rank r, Index at, Index) { found.emplace_back(r, at); });
  RC_ASSERT(found == overlapping);
}

}  // namespace
}  // namespace reshard
