// SPDX-License-Identifier: Apache-2.0
// Protects: simulated traffic takes the seconds that one works out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/simulate/cluster_places.h"
#include "reshard/simulate/simulate_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

TEST(SimulateTraffic, one_link_takes_its_latency_and_its_bytes_over_its_rate) {
  ClusterSpec cluster = plain_cluster();
  cluster.nics.latency_seconds = 0.25;
  cluster.messages.seconds_per_barrier = 0.5;
  const auto got = simulate_traffic(cluster, traffic(2, {sent(0, 1, 4 * kGigabyte, 4)}));
  ASSERT_TRUE(got);
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 4.75);
  EXPECT_DOUBLE_EQ(got->bound_seconds, 4);
  EXPECT_EQ(got->bound_by, "NIC 0 of host 0, sending");
  EXPECT_EQ(got->busiest_link, got->bound_by);
  EXPECT_DOUBLE_EQ(got->link_bytes, 4e9);
  EXPECT_DOUBLE_EQ(got->link_use, 4 / 4.75);
  ASSERT_EQ(got->ranks.size(), 2U);
  EXPECT_DOUBLE_EQ(got->ranks[1].first, 1.25);
  EXPECT_DOUBLE_EQ(got->ranks[1].moved, 4.25);
}

TEST(SimulateTraffic, two_flows_share_a_link_until_one_ends) {
  const auto got = simulate_traffic(plain_cluster(),
                                    traffic(3, {sent(0, 1, kGigabyte), sent(0, 2, 3 * kGigabyte)}));
  ASSERT_TRUE(got);
  EXPECT_DOUBLE_EQ(got->ranks[1].moved, 2);
  EXPECT_DOUBLE_EQ(got->ranks[2].moved, 4);
  EXPECT_DOUBLE_EQ(got->predicted_seconds, got->bound_seconds);
}

TEST(SimulateTraffic, groups_of_hosts_share_oversubscribed_uplinks) {
  ClusterSpec cluster = plain_cluster();
  cluster.fabric = {2, 2};
  const std::vector<PairTraffic> apart{sent(0, 2, kGigabyte), sent(1, 3, kGigabyte)};
  const auto got = simulate_traffic(cluster, traffic(4, apart));
  ASSERT_TRUE(got);
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 2);
  EXPECT_EQ(got->bound_by, "uplinks of group 0, sending");
  const std::vector<PairTraffic> within{sent(0, 1, kGigabyte), sent(2, 3, kGigabyte)};
  EXPECT_DOUBLE_EQ(simulate_traffic(cluster, traffic(4, within))->predicted_seconds, 1);
}

TEST(SimulateTraffic, ranks_of_a_host_use_their_own_nics_or_share_one) {
  ClusterSpec cluster = plain_cluster();
  cluster.ranks_per_host = 2;
  const std::vector<PairTraffic> pairs{sent(0, 2, kGigabyte), sent(1, 3, kGigabyte)};
  EXPECT_DOUBLE_EQ(simulate_traffic(cluster, traffic(4, pairs))->predicted_seconds, 2);
  cluster.nics.per_host = 2;
  EXPECT_DOUBLE_EQ(simulate_traffic(cluster, traffic(4, pairs))->predicted_seconds, 1);
}

TEST(SimulateTraffic, copies_are_limited_by_cores_and_by_the_memory_of_the_host) {
  ClusterSpec cluster = plain_cluster();
  cluster.ranks_per_host = 4;
  cluster.copies = {4, 1, 1e9, 0, 0};
  const auto pairs = traffic(4, {read_by(0, 1, kGigabyte), read_by(1, 0, kGigabyte),
                                 read_by(2, 2, kGigabyte), read_by(3, 2, kGigabyte)});
  EXPECT_DOUBLE_EQ(simulate_traffic(cluster, pairs)->predicted_seconds, 1);
  cluster.copies.host_bytes_per_second = 2e9;
  const auto memory = simulate_traffic(cluster, pairs);
  EXPECT_DOUBLE_EQ(memory->predicted_seconds, 2);
  EXPECT_EQ(memory->bound_by, "memory of host 0");
  EXPECT_EQ(memory->busiest_link, "");
  cluster.copies.cores = 1;
  const auto cores = simulate_traffic(cluster, pairs);
  EXPECT_DOUBLE_EQ(cores->predicted_seconds, 4);
  EXPECT_EQ(cores->bound_by, "cores of host 0");
}

TEST(SimulateTraffic, ranks_of_one_nvlink_domain_use_it_across_hosts) {
  ClusterSpec cluster = plain_cluster();
  cluster.nvlink = {2, 4e9, 0};
  const auto got = simulate_traffic(cluster, traffic(2, {read_by(1, 0, 2 * kGigabyte)}));
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 0.5);
  EXPECT_EQ(got->bound_by, "NVLink of rank 0, sending");
  EXPECT_TRUE(cluster.reads(Rank(0), Rank(1)));
  EXPECT_FALSE(cluster.reads(Rank(1), Rank(2)));
}

TEST(SimulateTraffic, packing_runs_beside_sending_but_for_the_first_and_last_message) {
  ClusterSpec cluster = plain_cluster();
  cluster.copies.bytes_per_second = 1e9;
  ClusterTraffic messages = traffic(2, {sent(0, 1, 4 * kGigabyte, 4)});
  messages.packed[0] = messages.unpacked[1] = 4 * kGigabyte;
  EXPECT_DOUBLE_EQ(simulate_traffic(cluster, messages)->predicted_seconds, 6);
}

TEST(SimulateTraffic, messages_and_copies_cost_a_core_its_time) {
  ClusterSpec cluster = plain_cluster();
  cluster.messages.seconds_per_message = 0.5;
  cluster.copies.seconds_per_run = 0.25;
  ClusterTraffic many = traffic(2, {sent(0, 1, kGigabyte, 4)});
  many.pairs[0].copies = 8;
  const auto got = simulate_traffic(cluster, many);
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 4);
  EXPECT_EQ(got->bound_by, "cores of rank 0");
}

TEST(SimulateTraffic, short_runs_cost_bytes_of_memory) {
  ClusterSpec cluster = plain_cluster();
  cluster.copies.host_bytes_per_second = 1e9;
  cluster.copies.bytes_per_run = 1000;
  ClusterTraffic copies = traffic(1, {read_by(0, 0, kGigabyte)});
  copies.pairs[0].copies = 3'000'000;
  const auto got = simulate_traffic(cluster, copies);
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 4);
  EXPECT_EQ(got->bound_by, "memory of host 0");
}

TEST(SimulateTraffic, a_cluster_without_places_for_the_ranks_is_an_error) {
  ClusterSpec cluster = plain_cluster();
  cluster.hosts = 2;
  const auto got = simulate_traffic(cluster, traffic(3, {sent(0, 2, 1)}));
  ASSERT_FALSE(got);
  EXPECT_THAT(got.error().message, HasSubstr("has places for 2 ranks"));
  cluster = plain_cluster();
  cluster.copies = {1, 2, 0, 0, 0, 0};
  EXPECT_THAT(simulate_traffic(cluster, traffic(1, {})).error().message,
              HasSubstr("copies.cores_per_rank must be at most copies.cores, which is 1, is 2"));
}

TEST(SimulateTraffic, thousands_of_equal_pairs_take_no_longer_than_their_bound) {
  std::vector<PairTraffic> pairs;
  for (int to = 0; to < 150; ++to)
    for (int from = 150; from < 300; ++from) pairs.push_back(sent(from, to, 1'000'000));
  const auto got = simulate_traffic(plain_cluster(), traffic(300, pairs));
  ASSERT_TRUE(got);
  EXPECT_NEAR(got->predicted_seconds, got->bound_seconds, 0.02 * got->bound_seconds);
}

TEST(SimulateTraffic, a_relay_begins_once_its_first_message_has_passed_those_before) {
  ClusterSpec cluster = plain_cluster();
  cluster.nics.latency_seconds = 0.25;
  PairTraffic second = sent(1, 2, kGigabyte, 10), third = sent(2, 3, kGigabyte, 10);
  second.before = 1;
  third.before = 2;
  const auto got =
      simulate_traffic(cluster, traffic(4, {sent(0, 1, kGigabyte, 10), second, third}));
  ASSERT_TRUE(got);
  // Two messages of 0.1 s, each after 0.25 s; then the last pair's latency and its bytes.
  EXPECT_DOUBLE_EQ(got->predicted_seconds, 0.7 + 0.25 + 1);
}

TEST(SimulateTraffic, places_are_hosts_or_domains_and_their_interfaces) {
  ClusterSpec cluster;
  cluster.ranks_per_host = 4;
  cluster.nics.per_host = 2;
  EXPECT_EQ(places_of(cluster, 10).domain,
            (std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(places_of(cluster, 10).nic, (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4}));
  cluster.nvlink.ranks = 8;
  EXPECT_EQ(places_of(cluster, 10).domain,
            (std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1}));
  cluster.nvlink.ranks = 2;  // ranks of one host need no interface either way
  EXPECT_EQ(places_of(cluster, 5).domain, (std::vector<std::int32_t>{0, 0, 0, 0, 1}));
  EXPECT_EQ(relays_on(cluster, RouteMode::direct), nullptr);
}

}  // namespace
}  // namespace reshard
