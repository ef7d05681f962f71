// SPDX-License-Identifier: Apache-2.0
// Protects: every way of running a plan puts every element where the layouts say, over random
// layouts.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <map>
#include <mutex>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/stream.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/model/random_layout_testutil.h"

namespace reshard {
namespace {

struct Case {
  std::shared_ptr<const ModelSpec> model = random_model();
  std::shared_ptr<const ModelLayout> from = random_layout(model), to = random_layout(model);
  Planner planner = *Planner::make(from, to);
  RankBuffers source = allocate_all(from), target = allocate_all(to);
  Case() { fill_elements(source); }
};

RC_GTEST_PROP(InProcessRefit, puts_every_element_in_place, ()) {
  const Case c;
  InProcessOptions options;
  options.threads = *rc::gen::inRange(1, 4);
  auto refit = *InProcessRefit::prepare(c.planner, c.source, c.target, options);
  for (int i = 0; i < 2; ++i) {
    const auto report = refit.run();
    RC_ASSERT(report.has_value());
    RC_ASSERT(count_wrong_elements(c.target) == 0);
  }
}

RC_GTEST_PROP(InProcessRefit, there_and_back_gives_the_first_bytes, ()) {
  const Case c;
  const RankBuffers back = allocate_all(c.from);
  RC_ASSERT(InProcessRefit::prepare(c.planner, c.source, c.target)->run().has_value());
  const Planner reverse = *Planner::make(c.to, c.from);
  RC_ASSERT(InProcessRefit::prepare(reverse, c.target, back)->run().has_value());
  RC_ASSERT(count_wrong_elements(back) == 0);
}

RC_GTEST_PROP(Stream, makes_every_byte_once_with_zero_padding, ()) {
  const Case c;
  const RankBuffers made = allocate_all(c.to);
  std::mutex mutex;
  for (Rank r : c.to->ranks().members()) {
    std::map<std::pair<SlotId, Index>, Index> blocks;
    const StreamSink sink = [&](Rank rank, SlotId slot, Index offset,
                                std::span<const std::byte> bytes) -> Result<> {
      const std::lock_guard lock(mutex);
      RC_ASSERT(rank == r &&
                blocks.emplace(std::pair(slot, offset), static_cast<Index>(bytes.size())).second);
      std::memcpy(made.at(r, slot) + offset, bytes.data(), bytes.size());
      return {};
    };
    StreamOptions options;
    options.threads = *rc::gen::inRange(1, 3);
    const auto slots = c.to->slots_of(r);
    RC_ASSERT(stream_rank(c.planner, c.source, r, slots, sink, options).has_value());
    std::map<SlotId, Index> end;
    for (const auto& [at, n] : blocks) {
      RC_ASSERT(end[at.first] == at.second);
      end[at.first] += n;
    }
    for (SlotId slot : slots) RC_ASSERT(end[slot] == made.bytes(r, slot));
  }
  RC_ASSERT(count_wrong_elements(made) == 0);
}

RC_GTEST_PROP(Proof, says_whether_source_and_target_are_equal, ()) {
  const Case c;
  RC_ASSERT(InProcessRefit::prepare(c.planner, c.source, c.target)->run().has_value());
  const auto before = fingerprints(c.source, 2), after = fingerprints(c.target, 2);
  RC_ASSERT(before.has_value() && after.has_value());
  const auto same = compare_fingerprints(*c.model, *before, *after);
  if (!same) RC_FAIL(same.error().message);
  // One changed byte of one fragment on one rank is found, whether the piece has replicas or not.
  const auto ranks = c.to->ranks().members();
  const Rank r = ranks[static_cast<std::size_t>(
      *rc::gen::inRange<Index>(0, static_cast<Index>(ranks.size())))];
  for (SlotId slot : c.to->slots_of(r)) {
    const auto fragments = c.to->local(slot, r).fragments;
    if (fragments.empty()) continue;
    const Index width = bits(c.to->slot(slot).dtype) / 8;
    c.target.at(r, slot)[fragments[0].where.offset * width] ^= std::byte{0x40};
    RC_ASSERT(!compare_fingerprints(*c.model, *before, *fingerprints(c.target, 1)).has_value());
    return;
  }
}

}  // namespace
}  // namespace reshard
