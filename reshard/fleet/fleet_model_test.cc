// SPDX-License-Identifier: Apache-2.0
// Law: in every reachable state of a small fleet, whatever is called whole is whole, whatever waits
// has something to wait for, and survivors get the version that a survivor holds.
#include "reshard/fleet/fleet_model_testutil.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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

/// Without RESHARD_SLOW_TESTS=1: one version, and no last engine. The search then takes a hundredth
/// of the time.
void reduce(ModelFleet& fleet) {
  if (std::getenv("RESHARD_SLOW_TESTS") != nullptr) return;
  fleet.places.pop_back();
  fleet.versions = 1;
}

void expect_no_violation(ModelFleet fleet) {
  for (const bool doubled : {false, true}) {
    SCOPED_TRACE(doubled ? "doubled" : "in place");
    fleet.doubled = doubled;
    const ModelResult result = search(fleet, kMaxStates);
    EXPECT_EQ(result.violation, "");
    EXPECT_GT(result.ends, 0U);
    ::testing::Test::RecordProperty(doubled ? "states_doubled" : "states_in_place",
                                    std::to_string(result.states));
  }
}

TEST(FleetModel, ThreeEnginesTakeTwoVersions) { expect_no_violation(engines_of_one()); }

TEST(FleetModel, OneOfThreeEnginesOrTheTrainerDies) {
  ModelFleet fleet = engines_of_one();
  fleet.deaths = 1;
  expect_no_violation(fleet);
}

TEST(FleetModel, OneDiesWhileOneJoins) {
  ModelFleet fleet = engines_of_one();
  fleet.places.back().late = true;
  fleet.deaths = 1;
  fleet.versions = std::getenv("RESHARD_SLOW_TESTS") != nullptr ? 2 : 1;
  expect_no_violation(fleet);
}

TEST(FleetModel, OneDiesAndComesAgainWithoutWeights) {
  ModelFleet fleet = engines_of_one();
  fleet.places.pop_back();
  fleet.deaths = 1;
  fleet.restarts = true;
  expect_no_violation(fleet);
}

TEST(FleetModel, OneIsStopped) {
  ModelFleet fleet = engines_of_one();
  fleet.stops = 1;
  expect_no_violation(fleet);
}

TEST(FleetModel, RoundsFailWithNobodyLost) {
  ModelFleet fleet = engines_of_one();
  fleet.places.pop_back();
  fleet.failures = 3;
  expect_no_violation(fleet);
}

TEST(FleetModel, ARankOfAnEngineOfTwoDiesAndComesAgain) {
  ModelFleet fleet = engine_of_two();
  fleet.deaths = 1;
  reduce(fleet);
  fleet.restarts = true;
  expect_no_violation(fleet);
}

TEST(FleetModel, ARankOfATrainerOfTwoDiesAndComesAgain) {
  ModelFleet fleet = trainer_of_two();
  fleet.deaths = 1;
  reduce(fleet);
  fleet.restarts = true;
  expect_no_violation(fleet);
}

TEST(FleetModel, TwoDie) {
  ModelFleet fleet = engines_of_one();
  fleet.deaths = 2;
  reduce(fleet);
  expect_no_violation(fleet);
}

}  // namespace
}  // namespace reshard::fleet
