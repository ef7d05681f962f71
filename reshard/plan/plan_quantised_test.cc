// SPDX-License-Identifier: Apache-2.0
// Protects: plans between quantised layouts deliver data and scales, each once, from ranks that
// hold them, also where shards cut blocks.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/quant/quantised_layout.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/check.h"
#include "reshard/plan/planner.h"
#include "reshard/plan/reference.h"

namespace reshard {
namespace {

RC_GTEST_PROP(PlanQuantised, data_and_scales_arrive_once_from_their_holders, ()) {
  const auto model = random_matrices();
  QuantChoice choice;
  choice.format = {.data = DType::f8_e4m3, .scale = DType::f32};
  choice.format.block_rows = *rc::gen::inRange(0, 4);
  choice.format.block_cols = *rc::gen::inRange(0, 4);
  choice.format.tensor_factor = *rc::gen::arbitrary<bool>();
  choice.grid = BlockGrid::tensor;
  for (const CanonicalTensor& t : model->tensors()) choice.tensors.insert(t.name);
  const auto from = quantise_layout(random_layout(model), choice);
  const auto to = quantise_layout(random_layout(model), choice);
  RC_ASSERT(from.has_value());
  RC_ASSERT(to.has_value());
  const auto planner = Planner::make(from->stored, to->stored);
  if (!planner) RC_FAIL(planner.error().message);
  std::map<std::pair<Rank, reference::Element>, Rank> got;
  planner->ranks().for_each([&](Rank r) {
    const RankPlan part = planner->rank_plan(r);
    const auto ok = check_rank_plan(*planner, part);
    if (!ok) RC_FAIL(ok.error().message);
    for (const auto* list : {&part.recvs, &part.locals})
      for (const Transfer& t : *list)
        reference::for_each_element(
            to->stored->model(), t.tensor, t.box,
            [&](reference::Element e) { RC_ASSERT(got.emplace(std::pair(r, e), t.src).second); });
  });
  const auto want = reference::plan(*from->stored, *to->stored);
  RC_ASSERT(got.size() == want.size());
  for (const auto& [at, src] : got) RC_ASSERT(want.at(at).contains(src));
}

}  // namespace
}  // namespace reshard
