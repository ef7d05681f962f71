// SPDX-License-Identifier: Apache-2.0
// Protects laws 1 to 4 of planner.h over random layouts, against the naive reference planner.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/check.h"
#include "reshard/plan/planner.h"
#include "reshard/plan/reference.h"

namespace reshard {
namespace {

struct Case {
  std::shared_ptr<const ModelSpec> model = random_model();
  std::shared_ptr<const ModelLayout> source = random_layout(model), target = random_layout(model);
  Planner planner = *Planner::make(source, target);
};

RC_GTEST_PROP(PlanLaws, every_wanted_element_arrives_once_from_an_owner_itself_first, ()) {
  const Case c;
  const auto want = reference::plan(*c.source, *c.target);
  std::map<std::pair<Rank, reference::Element>, Rank> got;
  c.planner.ranks().for_each([&](Rank r) {
    const RankPlan part = c.planner.rank_plan(r);
    for (const auto* list : {&part.recvs, &part.locals})
      for (const Transfer& t : *list)
        reference::for_each_element(*c.model, t.tensor, t.box, [&](reference::Element e) {
          RC_ASSERT(t.dst == r && (t.src == r) == (list == &part.locals));
          RC_ASSERT(got.emplace(std::pair(r, e), t.src).second);
        });
  });
  RC_ASSERT(got.size() == want.size());
  for (const auto& [to, src] : got) RC_ASSERT(want.at(to).contains(src));
}

RC_GTEST_PROP(PlanLaws, sender_and_receiver_plan_the_same_sequence, ()) {
  const Case c;
  std::map<std::pair<Rank, Rank>, std::vector<Transfer>> sent, received;
  c.planner.ranks().for_each([&](Rank r) {
    const RankPlan part = c.planner.rank_plan(r);
    for (const Transfer& t : part.sends) sent[{t.src, t.dst}].push_back(t);
    for (const Transfer& t : part.recvs) received[{t.src, t.dst}].push_back(t);
    for (const Transfer& t : part.sends) RC_ASSERT(t.src == r && t.dst != r);
  });
  RC_ASSERT(sent == received);
  const Planner again = *Planner::make(c.source, c.target);
  RC_ASSERT(again.digest() == c.planner.digest());
}

RC_GTEST_PROP(PlanLaws, busiest_sender_is_at_the_optimum, ()) {
  const Case c;
  const auto want = reference::plan(*c.source, *c.target);
  const double best = reference::optimal_max_egress(want, *c.model);
  RC_ASSERT(std::abs(static_cast<double>(c.planner.optimal_max_egress_bytes()) - best) < 1.0);
  // A share's border moves to the nearest slice: at most half the largest slice at each end of each
  // share.
  Index slice = 1, busiest = 0;
  for (const CanonicalTensor& t : c.model->tensors()) slice = std::max(slice, t.bytes());
  std::set<std::set<Rank>> supplies;
  for (const auto& [to, from] : want) supplies.insert(from);
  c.planner.ranks().for_each([&](Rank r) {
    Index load = 0;
    for (const Transfer& t : c.planner.rank_plan(r).sends)
      load += t.box.volume() * bits((*c.model)[t.tensor].dtype) / 8;
    busiest = std::max(busiest, load);
  });
  RC_ASSERT(static_cast<double>(busiest) <=
            best + static_cast<double>(slice) * static_cast<double>(supplies.size()) + 1);
}

RC_GTEST_PROP(PlanLaws, the_checker_agrees, ()) {
  const Case c;
  c.planner.ranks().for_each([&](Rank r) {
    const auto ok = check_rank_plan(c.planner, c.planner.rank_plan(r));
    if (!ok) RC_FAIL(ok.error().message);
  });
}

RC_GTEST_PROP(PlanLaws, the_checker_finds_what_is_wrong, ()) {
  const Case c;
  const auto ranks = c.planner.ranks().members();
  RankPlan part = c.planner.rank_plan(ranks[static_cast<std::size_t>(
      *rc::gen::inRange<Index>(0, static_cast<Index>(ranks.size())))]);
  auto& list = part.recvs.empty() ? part.locals : part.recvs;
  RC_PRE(!list.empty());
  const auto at = list.begin() + *rc::gen::inRange<Index>(0, static_cast<Index>(list.size()));
  switch (*rc::gen::inRange(0, 4)) {
    case 0: list.erase(at); break;
    case 1: list.push_back(*at); break;
    case 2: at->dst = Rank(at->dst.value() + 1); break;
    case 3: at->src = Rank(1000); break;
  }
  RC_ASSERT(!check_rank_plan(c.planner, part).has_value());
}

RC_GTEST_PROP(PlanLaws, equal_layouts_give_local_copies_only, ()) {
  const auto model = random_model();
  const auto layout = random_layout(model);
  const Planner p = *Planner::make(layout, layout);
  p.ranks().for_each(
      [&](Rank r) { RC_ASSERT(p.rank_plan(r).sends.empty() && p.rank_plan(r).recvs.empty()); });
}

RC_GTEST_PROP(PlanLaws, random_layouts_have_valid_shard_maps, ()) {
  const auto layout = random_layout(random_model());
  layout->ranks().for_each([&](Rank r) {
    const auto ok = check_shard_map(*layout, r);
    if (!ok) RC_FAIL(ok.error().message);
  });
}

}  // namespace
}  // namespace reshard
