// SPDX-License-Identifier: Apache-2.0
// Law: in every reachable state of a small fleet, whatever is called whole is whole, whatever waits
// has something to wait for, and survivors get the version that a survivor holds.
#include "reshard/fleet/fleet_model_testutil.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace reshard::fleet {
namespace {

constexpr std::size_t kMaxStates = 3'000'000;

const ModelFleet::Place kTrainer{.unit = "t", .role = Role::trainer};

ModelFleet engines_of_one() { return {.places = {kTrainer, {"a"}, {"b"}, {"c"}}}; }

/// Engine "a" has two processes.
ModelFleet engine_of_two() {
  return {.places = {kTrainer, {"a", Role::engine, 0, 2}, {"a", Role::engine, 1, 2}, {"b"}}};
}

ModelFleet trainer_of_two() {
  return {.places = {{"t", Role::trainer, 0, 2}, {"t", Role::trainer, 1, 2}, {"a"}, {"b"}}};
}

bool is_slow() { return std::getenv("RESHARD_SLOW_TESTS") != nullptr; }

/// Two with RESHARD_SLOW_TESTS=1, else one: the search then takes a tenth of the time.
int versions() { return is_slow() ? 2 : 1; }

/// Without RESHARD_SLOW_TESTS=1: one version, and no last engine. The search then takes a hundredth
/// of the time.
void reduce(ModelFleet& fleet) {
  if (is_slow()) return;
  fleet.places.pop_back();
  fleet.versions = 1;
}

/// The numbers of states, in place and doubled.
std::pair<std::size_t, std::size_t> expect_no_violation(ModelFleet fleet) {
  std::size_t states[2] = {0, 0};
  for (const bool doubled : {false, true}) {
    SCOPED_TRACE(doubled ? "doubled" : "in place");
    fleet.doubled = doubled;
    const ModelResult result = search(fleet, kMaxStates);
    EXPECT_EQ(result.violation, "");
    EXPECT_GT(result.ends, 0U);
    ::testing::Test::RecordProperty(doubled ? "states_doubled" : "states_in_place",
                                    std::to_string(result.states));
    states[doubled ? 1 : 0] = result.states;
  }
  return {states[0], states[1]};
}

TEST(FleetModel, three_engines_take_two_versions) { expect_no_violation(engines_of_one()); }

TEST(FleetModel, one_of_three_engines_or_the_trainer_dies) {
  ModelFleet fleet = engines_of_one();
  fleet.deaths = 1;
  const auto [in_place, doubled] = expect_no_violation(fleet);
  // docs/elastic.md has these.
  EXPECT_EQ(in_place, 91'029U);
  EXPECT_EQ(doubled, 84'693U);
}

TEST(FleetModel, one_dies_while_one_joins) {
  ModelFleet fleet = engines_of_one();
  fleet.places.back().late = true;
  fleet.deaths = 1;
  fleet.versions = versions();
  expect_no_violation(fleet);
}

TEST(FleetModel, one_dies_and_comes_again_without_weights) {
  ModelFleet fleet = engines_of_one();
  fleet.places.pop_back();
  fleet.deaths = 1;
  fleet.restarts = true;
  expect_no_violation(fleet);
}

TEST(FleetModel, one_is_stopped) {
  ModelFleet fleet = engines_of_one();
  fleet.stops = 1;
  expect_no_violation(fleet);
}

TEST(FleetModel, rounds_fail_with_nobody_lost) {
  ModelFleet fleet = engines_of_one();
  fleet.places.pop_back();
  fleet.failures = 3;
  expect_no_violation(fleet);
}

TEST(FleetModel, a_rank_of_an_engine_of_two_dies_and_comes_again) {
  ModelFleet fleet = engine_of_two();
  fleet.deaths = 1;
  fleet.versions = versions();
  fleet.restarts = true;
  expect_no_violation(fleet);
}

TEST(FleetModel, a_rank_of_a_trainer_of_two_dies_and_comes_again) {
  ModelFleet fleet = trainer_of_two();
  fleet.deaths = 1;
  reduce(fleet);
  fleet.restarts = true;
  expect_no_violation(fleet);
}

TEST(FleetModel, two_die) {
  ModelFleet fleet = engines_of_one();
  fleet.deaths = 2;
  reduce(fleet);
  expect_no_violation(fleet);
}

}  // namespace
}  // namespace reshard::fleet
