// SPDX-License-Identifier: Apache-2.0
// Protects: a process finds its rank and size in the environment of its launcher, or gets an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "reshard/transport/group.h"

namespace reshard {
namespace {

constexpr const char* kVariables[] = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
    "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS", "RANK",     "WORLD_SIZE"};

class LaunchedTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* variable : kVariables) unsetenv(variable);
  }
  static std::string place() {
    const auto found = launched();
    if (!found) return found.error().message;
    if (!*found) return "none";
    const Launched& l = **found;
    return l.launcher + " " + std::to_string(l.rank) + "/" + std::to_string(l.size);
  }
};

TEST_F(LaunchedTest, nobody_launched_it) { EXPECT_EQ(place(), "none"); }

TEST_F(LaunchedTest, each_launcher_is_known) {
  const char* launchers[] = {"Open MPI", "MPICH", "Slurm", "torchrun"};
  for (std::size_t i = 0; i < std::size(launchers); ++i) {
    SetUp();
    setenv(kVariables[2 * i], "3", 1);
    setenv(kVariables[2 * i + 1], "8", 1);
    EXPECT_EQ(place(), std::string(launchers[i]) + " 3/8");
  }
}

TEST_F(LaunchedTest, mpirun_inside_a_slurm_job_counts) {
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  setenv("PMI_RANK", "5", 1);
  setenv("PMI_SIZE", "16", 1);
  EXPECT_EQ(place(), "MPICH 5/16");
}

TEST_F(LaunchedTest, the_batch_script_of_slurm_is_no_step) {
  setenv("SLURM_PROCID", "0", 1);
  EXPECT_EQ(place(), "none");
}

TEST_F(LaunchedTest, half_of_it_and_nonsense_are_errors) {
  setenv("PMI_RANK", "1", 1);
  EXPECT_THAT(place(), testing::HasSubstr("PMI_RANK is set but PMI_SIZE is not"));
  for (const char* bad : {"", "x", "1x", "-1", "99999999999"}) {
    setenv("PMI_SIZE", bad, 1);
    EXPECT_THAT(place(), testing::HasSubstr(std::string("PMI_SIZE=") + bad)) << bad;
  }
  setenv("PMI_SIZE", "1", 1);
  EXPECT_THAT(place(), testing::HasSubstr("PMI_RANK=1 but PMI_SIZE=1"));
}

}  // namespace
}  // namespace reshard
