// SPDX-License-Identifier: Apache-2.0
// Protects: simulated programs take the seconds that one works out by hand, and what cannot end is
// an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/relays/random_replicas_testutil.h"
#include "reshard/program/compile.h"
#include "reshard/simulate/cluster_places.h"
#include "reshard/simulate/predict.h"
#include "reshard/simulate/simulate_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

double seconds_of(const ClusterSpec& cluster, const std::vector<Program>& programs) {
  const auto got = simulate_programs(cluster, programs);
  EXPECT_TRUE(got) << got.error().message;
  return got ? got->predicted_seconds : -1;
}

TEST(SimulatePrograms, a_message_begins_when_both_sides_have_begun_it) {
  ClusterSpec cluster = plain_cluster();
  cluster.copies.bytes_per_second = 1e9;
  cluster.nics.latency_seconds = 0.5;
  const Program sender = ProgramSteps(0).tile(0, 3 * kGigabyte).send(1, 7, kGigabyte, {0}).done();
  const Program receiver = ProgramSteps(1).receive(0, 7, kGigabyte).tile(1, kGigabyte, {0}).done();
  const auto got = simulate_programs(cluster, std::vector{sender, receiver});
  ASSERT_TRUE(got);
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 5.5);  // 3 packing, 0.5 and 1 on the link, 1 unpacking
  EXPECT_DOUBLE_EQ(got->ranks[0].first, 3);
  EXPECT_DOUBLE_EQ(got->ranks[0].moved, 4.5);
  EXPECT_DOUBLE_EQ(got->ranks[1].first, 4.5);
  EXPECT_DOUBLE_EQ(got->ranks[1].moved, 5.5);
  EXPECT_DOUBLE_EQ(got->bound_seconds, 3);
  EXPECT_EQ(got->bound_by, "cores of rank 0");
  EXPECT_EQ(got->busiest_link, "NIC 0 of host 0, sending");
}

TEST(SimulatePrograms, exchanges_begin_in_order_even_if_a_later_one_is_ready) {
  ClusterSpec cluster = plain_cluster();
  cluster.copies.bytes_per_second = 1e9;
  const Program a = ProgramSteps(0)
                        .tile(0, 2 * kGigabyte)
                        .send(1, 0, kGigabyte, {0})
                        .send(2, 0, kGigabyte)
                        .done();
  const Program b = ProgramSteps(1).receive(0, 0, kGigabyte).done();
  const Program c = ProgramSteps(2).receive(0, 0, kGigabyte).done();
  EXPECT_DOUBLE_EQ(seconds_of(cluster, {a, b, c}), 4);  // both at once, after the tile
}

TEST(SimulatePrograms, a_barrier_lets_nobody_pass_before_the_last) {
  ClusterSpec cluster = plain_cluster();
  cluster.copies.bytes_per_second = 1e9;
  cluster.messages.seconds_per_barrier = 0.25;
  const Program slow = ProgramSteps(0).tile(0, 2 * kGigabyte).barrier({0}).done();
  const Program fast = ProgramSteps(1).barrier().tile(1, kGigabyte, {0}).done();
  EXPECT_DOUBLE_EQ(seconds_of(cluster, {slow, fast}), 3.25);
}

TEST(SimulatePrograms, a_rank_runs_as_many_tiles_at_once_as_it_has_threads) {
  ClusterSpec cluster = plain_cluster();
  cluster.copies = {4, 1, 1e9, 0, 0};
  const auto one_tile = ProgramSteps(0).tile(0, kGigabyte).done();
  const auto tiles =
      ProgramSteps(0).tile(0, kGigabyte).tile(0, kGigabyte).tile(0, kGigabyte).done();
  EXPECT_DOUBLE_EQ(seconds_of(cluster, {tiles}), 3);
  cluster.copies.cores_per_rank = 2;
  EXPECT_DOUBLE_EQ(seconds_of(cluster, {tiles}), 2);
  EXPECT_DOUBLE_EQ(seconds_of(cluster, {one_tile}), 1);  // a tile is one thread's
}

TEST(SimulatePrograms, a_tile_that_reads_a_peer_uses_the_link_between_them) {
  ClusterSpec cluster = plain_cluster();
  cluster.nvlink = {2, 2e9, 0};
  const Program reader = ProgramSteps(0).tile(1, kGigabyte).done();
  const Program source = ProgramSteps(1).done();
  const auto got = simulate_programs(cluster, std::vector{reader, source});
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 0.5);
  EXPECT_EQ(got->bound_by, "NVLink of rank 1, sending");
}

TEST(SimulatePrograms, one_process_uses_all_cores_of_its_host) {
  ClusterSpec cluster = plain_cluster();
  cluster.copies = {2, 1, 1e9, 1.5e9, 0};
  const Program all = ProgramSteps(-1).tile(0, 3 * kGigabyte).tile(1, 3 * kGigabyte).done();
  const auto got = simulate_programs(cluster, std::vector{all});
  ASSERT_TRUE(got);
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 4);
  EXPECT_EQ(got->bound_by, "memory of host 0");
}

TEST(SimulatePrograms, programs_that_cannot_end_are_refused) {
  const auto error_of = [](std::vector<Program> programs) {
    const auto got = simulate_programs(plain_cluster(), programs);
    return got ? std::string("no error") : got.error().message;
  };
  const Program a = ProgramSteps(0).receive(1, 0, 8).send(1, 0, 8, {0}).done();
  const Program b = ProgramSteps(1).receive(0, 0, 8).send(0, 0, 8, {0}).done();
  EXPECT_THAT(error_of({a, b}), HasSubstr("the programs cannot end: rank 0 ran 0 of 2 steps"));
  const Program sends = ProgramSteps(0).send(1, 3, 8).done();
  EXPECT_THAT(error_of({sends, ProgramSteps(1).done()}),
              HasSubstr("message 3 from rank 0 to rank 1 is sent, but not received"));
  EXPECT_THAT(error_of({ProgramSteps(0).done(), ProgramSteps(1).receive(0, 3, 8).done()}),
              HasSubstr("is received, but not sent"));
  EXPECT_THAT(error_of({sends, ProgramSteps(1).receive(0, 3, 9).done()}),
              HasSubstr("8 bytes at the sender and 9 at the receiver"));
  EXPECT_THAT(error_of({ProgramSteps(1).done()}), HasSubstr("program 0 must be that of rank 0"));
  const Program waits = ProgramSteps(0).barrier().done();
  EXPECT_THAT(error_of({waits, ProgramSteps(1).done()}), HasSubstr("cannot end"));
}

struct Compiled {
  std::shared_ptr<const ModelSpec> model = random_model();
  Planner planner = *Planner::make(random_layout(model), random_layout(model));
  PlanSummary plan = summarise(planner, 1, true);
  ClusterSpec cluster = plain_cluster();
  Compiled() {
    cluster.ranks_per_host = 2;
    cluster.copies = {2, 1, 4e9, 6e9, 1e-7};
    cluster.messages = {1e-6, 1e-5, 1};
    cluster.nics.latency_seconds = 1e-5;
  }
};

/// Bytes of messages by pair of ranks.
std::map<std::pair<Rank, Rank>, Index> messages_of(const ClusterTraffic& traffic) {
  std::map<std::pair<Rank, Rank>, Index> bytes;
  for (const PairTraffic& p : traffic.pairs)
    if (p.messages > 0) bytes[{p.from, p.to}] = p.bytes;
  return bytes;
}

RC_GTEST_PROP(SimulatePrograms, programs_move_the_traffic_of_their_plan, ()) {
  Compiled c;
  c.cluster.direct = *rc::gen::arbitrary<bool>();
  const auto programs = compile_for(c.cluster, c.planner);
  RC_ASSERT(programs.has_value());
  const ClusterTraffic planned = traffic_of(c.plan, c.cluster), compiled = traffic_of(*programs);
  RC_ASSERT(messages_of(planned) == messages_of(compiled));
  Index planned_bytes = 0, compiled_bytes = 0;
  for (const PairTraffic& p : planned.pairs) planned_bytes += p.bytes;
  for (const PairTraffic& p : compiled.pairs) compiled_bytes += p.bytes;
  RC_ASSERT(planned_bytes == c.plan.bytes_total);
  RC_ASSERT(compiled_bytes >= planned_bytes);  // a rank may hold a tensor in two places
}

RC_GTEST_PROP(SimulatePrograms, no_prediction_is_below_its_bound, ()) {
  Compiled c;
  c.cluster.direct = *rc::gen::arbitrary<bool>();
  const auto programs = compile_for(c.cluster, c.planner);
  RC_ASSERT(programs.has_value());
  for (const auto& got : {simulate_programs(c.cluster, *programs),
                          simulate_traffic(c.cluster, traffic_of(c.plan, c.cluster)),
                          simulate_traffic(c.cluster, traffic_of(*programs))}) {
    RC_ASSERT(got.has_value());
    RC_ASSERT(got->predicted_seconds >= got->bound_seconds * (1 - 1e-9));
    for (const RankSeconds& rank : got->ranks)
      RC_ASSERT(rank.first <= rank.moved && rank.moved <= got->predicted_seconds);
  }
}

RC_GTEST_PROP(SimulatePrograms, relays_move_the_traffic_of_their_plan, ()) {
  const RandomReplicas replicas;
  ClusterSpec cluster = plain_cluster();
  cluster.ranks_per_host = *rc::gen::element(1, 2, 4);
  cluster.direct = false;
  RelayOptions relays = *relays_on(cluster, RouteMode::automatic);
  relays.least_gain = 0;
  const Planner planner =
      *Planner::make(replicas.source, replicas.target,
                     {{}, {}, std::make_shared<const RelayOptions>(std::move(relays))});
  const PlanSummary plan = summarise(planner, 1, true);
  const auto programs = compile_for(cluster, planner);
  RC_ASSERT(programs.has_value());
  RC_ASSERT(messages_of(traffic_of(plan, cluster)) == messages_of(traffic_of(*programs)));
  const auto by_programs = simulate_programs(cluster, *programs);
  const auto by_traffic = simulate_traffic(cluster, traffic_of(plan, cluster));
  RC_ASSERT(by_programs.has_value() && by_traffic.has_value());
  const double least =
      static_cast<double>(planner.relays()->busiest_bytes) / cluster.nics.bytes_per_second;
  // Cuts at rows: as in the planner's fourth law.
  RC_ASSERT(by_programs->predicted_seconds >= 0.9 * least);
  RC_ASSERT(by_traffic->predicted_seconds >= 0.9 * least);
  RC_CLASSIFY(planner.uses_relays());
}

}  // namespace
}  // namespace reshard
