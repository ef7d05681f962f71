// SPDX-License-Identifier: Apache-2.0
// Refits between random layouts, for properties: inside one only.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <memory>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {

/// A random model in two random layouts, with memory of all ranks; the source is filled.
struct RandomJob {
  std::shared_ptr<const ModelSpec> model = random_model();
  std::shared_ptr<const ModelLayout> from = random_layout(model), to = random_layout(model);
  Planner planner = *Planner::make(from, to);
  RankBuffers source = allocate_all(from), target = allocate_all(to);
  int world = planner.ranks().members().back().value() + 1;
  RandomJob() { fill_elements(source); }
};

/// Runs body(ends), a Result, on n threads and expects success.
template <class Body>
void on_ranks(int n, Body&& body) {
  const auto ended = run_group_as_threads<InprocGroup>(
      n, [&](RankEnds& ends) { EXPECT_EQ(outcome(body(ends)), ""); });
  EXPECT_EQ(outcome(ended), "");
}

/// Sets every byte of a rank's local tensors.
inline void wipe(const RankBuffers& buffers, Rank me, int with) {
  for (const SlotId slot : buffers.layout().slots_of(me))
    if (buffers.bytes(me, slot) > 0)
      std::memset(buffers.at(me, slot), with, static_cast<std::size_t>(buffers.bytes(me, slot)));
}

}  // namespace reshard
