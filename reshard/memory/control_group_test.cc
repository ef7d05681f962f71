// SPDX-License-Identifier: Apache-2.0
// Protects: the limits of a container are found in both versions of control groups, at the group's
// own folder and at those around it, and nonsense is no limit.
#include "reshard/memory/control_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace reshard {
namespace {

class ControlGroups : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/control_groups_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root_;
};

TEST_F(ControlGroups, of_a_machine_without_any_there_is_no_limit) {
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.version, 0);
  EXPECT_FALSE(limits.memory_bytes || limits.memory_left_bytes || limits.cores || limits.processes);
}

TEST_F(ControlGroups, of_version_2_give_the_least_of_all_folders) {
  write("/proc/self/cgroup", "0::/job/step\n");
  write("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
  write("/sys/fs/cgroup/job/memory.max", "1000\n");
  write("/sys/fs/cgroup/job/memory.current", "900\n");
  write("/sys/fs/cgroup/job/memory.stat", "anon 500\ninactive_file 100\nactive_file 50\n");
  write("/sys/fs/cgroup/job/step/memory.max", "5000\n");
  write("/sys/fs/cgroup/job/step/memory.current", "900\n");
  write("/sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
  write("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/job/step/pids.max", "max\n");
  write("/sys/fs/cgroup/pids.max", "77\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.version, 2);
  EXPECT_EQ(limits.memory_bytes, 1000);
  EXPECT_EQ(limits.memory_left_bytes, 250);
  EXPECT_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.processes, 77);
}

TEST_F(ControlGroups, of_a_container_whose_path_is_hidden_are_those_of_the_root) {
  write("/proc/self/cgroup", "0::/../../other\n");
  write("/sys/fs/cgroup/cgroup.controllers", "memory\n");
  write("/sys/fs/cgroup/memory.max", "4096\n");
  write("/sys/fs/cgroup/memory.current", "5000\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.memory_bytes, 4096);
  EXPECT_EQ(limits.memory_left_bytes, 0);
}

TEST_F(ControlGroups, of_version_1_have_a_tree_for_each_controller) {
  write("/proc/self/cgroup",
        "9:name=systemd:/\n8:pids:/a\n4:memory:/box/one\n1:cpu,cpuacct:/c\n0::/\n");
  write("/sys/fs/cgroup/memory/cgroup.procs", "");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/box/one/memory.limit_in_bytes", "2000\n");
  write("/sys/fs/cgroup/memory/box/one/memory.usage_in_bytes", "1500\n");
  write("/sys/fs/cgroup/memory/box/one/memory.stat", "total_inactive_file 300\n");
  write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000\n");
  write("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/pids/a/pids.max", "12\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.version, 1);
  EXPECT_EQ(limits.memory_bytes, 2000);
  EXPECT_EQ(limits.memory_left_bytes, 800);
  EXPECT_EQ(limits.cores, 0.5);
  EXPECT_EQ(limits.processes, 12);
}

TEST_F(ControlGroups, with_files_that_are_no_numbers_have_no_limit) {
  write("/proc/self/cgroup", "nonsense\n:::\n0::\n");
  write("/sys/fs/cgroup/cgroup.procs", "1\n");
  write("/sys/fs/cgroup/memory.max", "much\n");
  write("/sys/fs/cgroup/cpu.max", "0 0\n");
  write("/sys/fs/cgroup/pids.max", "-5\n");
  const ControlGroupLimits limits = control_group_limits(root_);
  EXPECT_EQ(limits.version, 2);
  EXPECT_FALSE(limits.memory_bytes || limits.cores || limits.processes);
}

}  // namespace
}  // namespace reshard
