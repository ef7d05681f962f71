// SPDX-License-Identifier: Apache-2.0
// Protects law 5 of planner.h, and laws 1 to 3 where replicas relay: every replica gets every byte
// once, and no relay sends what it does not receive before.
#include "reshard/plan/relays/relays.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/check.h"
#include "reshard/plan/reference.h"
#include "reshard/plan/relays/random_replicas_testutil.h"

namespace reshard {
namespace {

constexpr int kMaxRanks = 64;

/// Layouts with replicas, or any.
struct Case {
  RandomReplicas replicas;
  std::shared_ptr<const ModelSpec> model = replicas.model;
  std::shared_ptr<const ModelLayout> source = replicas.source, target = replicas.target;
  PlanOptions options{{}, {}, random_relays(kMaxRanks)};
  Planner planner = make();

 private:
  Planner make() {
    if (*rc::gen::element(0, 0, 1) == 1) {
      model = random_model();
      source = random_layout(model);
      target = random_layout(model);
    }
    return *Planner::make(source, target, options);
  }
};

RC_GTEST_PROP(Relays, every_replica_gets_every_byte_once_from_a_rank_that_has_it, ()) {
  const Case c;
  const auto want = reference::plan(*c.source, *c.target);
  std::map<std::pair<Rank, reference::Element>, Transfer> got;
  c.planner.ranks().for_each([&](Rank r) {
    const RankPlan part = c.planner.rank_plan(r);
    for (const auto* list : {&part.recvs, &part.locals})
      for (const Transfer& t : *list)
        reference::for_each_element(*c.model, t.tensor, t.box, [&](reference::Element e) {
          RC_ASSERT(got.emplace(std::pair(r, e), t).second);
        });
  });
  RC_ASSERT(got.size() == want.size());
  for (const auto& [to, t] : got) {
    if (t.relay.hop == 0) {
      RC_ASSERT(want.at(to).contains(t.src));
      continue;
    }
    // The hops fall by one from rank to rank, so that no rank waits for itself.
    const Transfer& before = got.at({t.src, to.second});
    RC_ASSERT(before.relay.hop + 1 == t.relay.hop && before.relay.chain == t.relay.chain);
  }
}

RC_GTEST_PROP(Relays, sender_and_receiver_plan_the_same_sequence, ()) {
  const Case c;
  std::map<std::pair<Rank, Rank>, std::vector<Transfer>> sent, received;
  c.planner.ranks().for_each([&](Rank r) {
    const RankPlan part = c.planner.rank_plan(r);
    for (const Transfer& t : part.sends) sent[{t.src, t.dst}].push_back(t);
    for (const Transfer& t : part.recvs) received[{t.src, t.dst}].push_back(t);
    RC_ASSERT(check_rank_plan(c.planner, part).has_value());
  });
  RC_ASSERT(sent == received);
  RC_ASSERT(Planner::make(c.source, c.target, c.options)->digest() == c.planner.digest());
}

RC_GTEST_PROP(Relays, no_plan_beats_the_bound, ()) {
  const Case c;
  const RelaySummary& s = *c.planner.relays();
  RC_ASSERT(s.least_bytes <= s.busiest_bytes && s.least_bytes <= s.direct_bytes);
  RC_ASSERT(!s.used || s.hops > 1);
}

RC_GTEST_PROP(Relays, the_checker_finds_a_relay_that_does_not_receive, ()) {
  const Case c;
  RC_PRE(c.planner.uses_relays());
  bool found = false;
  c.planner.ranks().for_each([&](Rank r) {
    const RankPlan part = c.planner.rank_plan(r);
    for (std::size_t i = 0; i < part.sends.size(); ++i) {
      if (found || part.sends[i].relay.hop == 0) continue;
      found = true;
      for (const int change : {0, 1, 2}) {
        RankPlan bad = part;
        RelayHop& relay = bad.sends[i].relay;
        if (change == 0) relay.chain += 1000;
        if (change == 1) ++relay.hop;
        if (change == 2) bad.recvs.clear();
        RC_ASSERT(!check_rank_plan(c.planner, bad).has_value());
      }
    }
  });
  RC_ASSERT(found);
}

/// All ranks on hosts of `per_host`, each with an interface of its own or all with one.
std::shared_ptr<const RelayOptions> hosts(int ranks, int per_host, bool own_nics) {
  RelayOptions options;
  for (int r = 0; r < ranks; ++r) {
    options.places.domain.push_back(r / per_host);
    options.places.nic.push_back(own_nics ? r : r / per_host);
  }
  return std::make_shared<const RelayOptions>(std::move(options));
}

struct Replicas {
  std::shared_ptr<const ModelLayout> source, target;
  Replicas(const std::string& from, const std::string& to) {
    const ModelConfig config = tiny_dense();
    const auto model = model_of(config);
    source = layout_of(from, model, config);
    target = layout_of(to, model, config);
  }
  Planner plan(std::shared_ptr<const RelayOptions> relays) const {
    return *Planner::make(source, target, {{}, {}, std::move(relays)});
  }
};

TEST(Relays, one_trainer_sends_one_copy_to_any_number_of_hosts) {
  const Replicas r("megatron:tp=1", "megatron:tp=1,dp=8,offset=1");
  const Planner planner = r.plan(hosts(9, 1, true));
  const RelaySummary& s = *planner.relays();
  EXPECT_TRUE(s.used);
  EXPECT_EQ(s.direct_bytes, 8 * s.busiest_bytes);
  EXPECT_EQ(s.busiest_bytes, s.least_bytes);
  EXPECT_EQ(s.hops, 8);
  EXPECT_EQ(planner.optimal_max_egress_bytes(), s.busiest_bytes);
}

TEST(Relays, stripes_enter_a_host_by_all_its_interfaces) {
  // Two hosts of four replicas each: a quarter of the bytes enters by each interface, and leaves
  // the first host by each.
  const Replicas r("megatron:tp=4", "megatron:tp=1,dp=8,offset=4");
  const Planner planner = r.plan(hosts(12, 4, true));
  const RelaySummary& s = *planner.relays();
  EXPECT_TRUE(s.used);
  EXPECT_GE(s.direct_bytes, 7 * s.busiest_bytes);
  EXPECT_LE(static_cast<double>(s.busiest_bytes), 1.1 * static_cast<double>(s.least_bytes));
  EXPECT_EQ(s.hops, 5);
}

TEST(Relays, a_plan_that_gains_nothing_is_the_direct_one) {
  const Replicas r("megatron:tp=2", "megatron:tp=1,dp=2,offset=2");
  const Planner direct = r.plan(nullptr);
  EXPECT_FALSE(direct.relays().has_value());
  // All on one host; and no replicas on different hosts than the sources.
  for (const auto& places : {hosts(4, 4, true), hosts(4, 4, false)}) {
    const Planner planner = r.plan(places);
    EXPECT_FALSE(planner.uses_relays());
    EXPECT_EQ(planner.relays()->busiest_bytes, 0);
    EXPECT_EQ(planner.digest(), direct.digest());
    planner.ranks().for_each([&](Rank rank) {
      EXPECT_EQ(planner.rank_plan(rank).recvs, direct.rank_plan(rank).recvs);
      EXPECT_EQ(planner.rank_plan(rank).sends, direct.rank_plan(rank).sends);
    });
  }
  // Four senders with own interfaces have time to serve two receivers.
  const Replicas many("megatron:tp=4", "megatron:tp=1,dp=2,offset=4");
  EXPECT_FALSE(many.plan(hosts(6, 1, true)).uses_relays());
}

TEST(Relays, other_places_are_another_plan) {
  const Replicas r("megatron:tp=1", "megatron:tp=1,dp=4,offset=1");
  EXPECT_NE(r.plan(hosts(5, 1, true)).digest(), r.plan(hosts(5, 2, true)).digest());
  EXPECT_NE(r.plan(hosts(5, 1, true)).digest(), r.plan(nullptr).digest());
}

}  // namespace
}  // namespace reshard
