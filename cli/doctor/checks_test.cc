// SPDX-License-Identifier: Apache-2.0
// Protects: each fact that stands in the way of refits is a finding that says its consequence and
// its remedy, sufficient ones are no finding, and a test that crashes or hangs ends neither.
#include "cli/doctor/checks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace reshard::cli::doctor {
namespace {

using State = Finding::State;

constexpr Index kGiB = Index{1} << 30;

/// Every finding that is neither ok nor absent says what goes wrong; ok ones say nothing.
void expect_state(const Finding& finding, State state) {
  EXPECT_EQ(finding.state, state) << finding.name << ": " << finding.value;
  EXPECT_FALSE(finding.name.empty());
  EXPECT_FALSE(finding.value.empty());
  if (state == State::ok || state == State::absent)
    EXPECT_TRUE(finding.effect.empty() && finding.remedy.empty());
  else
    EXPECT_FALSE(finding.effect.empty()) << finding.value;
}

TEST(Doctor, judges_the_processor) {
  const SimdLevel best = SimdLevel::avx512;
  expect_state(judge(ProcessorFacts{8, 8, {}, best, best}), State::ok);
  expect_state(judge(ProcessorFacts{8, 4, 4.0, best, best}), State::ok);
  const Finding throttled = judge(ProcessorFacts{64, 64, 2.5, best, best});
  expect_state(throttled, State::note);
  EXPECT_NE(throttled.remedy.find("--threads 2"), std::string::npos);
  EXPECT_NE(judge(ProcessorFacts{8, 8, 0.5, best, best}).remedy.find("--threads 1"),
            std::string::npos);
  expect_state(judge(ProcessorFacts{8, 8, {}, SimdLevel::portable, best}), State::note);
}

TEST(Doctor, judges_memory) {
  expect_state(judge(MemoryFacts{64 * kGiB, 60 * kGiB, {}, 2}), State::ok);
  expect_state(judge(MemoryFacts{64 * kGiB, kGiB / 2, {}, 2}), State::note);
  const Finding limited = judge(MemoryFacts{64 * kGiB, kGiB / 2, kGiB, 1});
  expect_state(limited, State::note);
  EXPECT_NE(limited.remedy.find("container"), std::string::npos);
}

TEST(Doctor, judges_folders) {
  using Use = FolderFacts::Use;
  expect_state(judge(FolderFacts{Use::shared_memory, "/dev/shm", "", 8 * kGiB, 8 * kGiB}),
               State::ok);
  const Finding docker = judge(FolderFacts{Use::shared_memory, "/dev/shm", "", 64 << 20, 64 << 20});
  expect_state(docker, State::note);
  EXPECT_NE(docker.remedy.find("--shm-size"), std::string::npos);
  expect_state(judge(FolderFacts{Use::shared_memory, "/dev/shm", "Permission denied", 0, 0}),
               State::note);
  expect_state(judge(FolderFacts{Use::temporary, "/tmp", "", 8 * kGiB, 8 * kGiB}), State::ok);
  expect_state(judge(FolderFacts{Use::temporary, "/tmp", "", 8 * kGiB, 1000}), State::note);
  expect_state(judge(FolderFacts{Use::temporary, "/tmp", "Read-only file system", 0, 0}),
               State::problem);
}

TEST(Doctor, judges_limits) {
  expect_state(judge(OpenFilesFacts{{1024, 1 << 20}}), State::ok);  // ranks raise the soft limit
  expect_state(judge(OpenFilesFacts{{std::nullopt, std::nullopt}}), State::ok);
  expect_state(judge(OpenFilesFacts{{1024, 1024}}), State::note);
  expect_state(judge(OpenFilesFacts{{64, 64}}), State::problem);

  expect_state(judge(LockedMemoryFacts{{8 << 20, 8 << 20}, {}}), State::ok);
  expect_state(judge(LockedMemoryFacts{{std::nullopt, std::nullopt}, {"mlx5_0"}}), State::ok);
  const Finding rdma = judge(LockedMemoryFacts{{8 << 20, 8 << 20}, {"mlx5_0"}});
  expect_state(rdma, State::problem);
  EXPECT_NE(rdma.effect.find("mlx5_0"), std::string::npos);

  expect_state(judge(ProcessesFacts{{}, {}, 64}), State::ok);
  expect_state(judge(ProcessesFacts{100'000, 200, 64}), State::note);
  expect_state(judge(ProcessesFacts{100'000, 20, 64}), State::problem);
  expect_state(judge(ProcessesFacts{20, {}, 64}), State::problem);

  expect_state(judge(AddressSpaceFacts{{}, 65530}), State::ok);
  expect_state(judge(AddressSpaceFacts{kGiB, 65530}), State::note);
  expect_state(judge(AddressSpaceFacts{{}, 100}), State::note);
}

TEST(Doctor, judges_the_machine) {
  expect_state(judge(PeerReadsFacts{}), State::ok);
  expect_state(judge(PeerReadsFacts{"process_vm_readv: Operation not permitted"}), State::note);
  expect_state(judge(HugePagesFacts{"madvise", "never"}), State::ok);
  expect_state(judge(HugePagesFacts{"never", ""}), State::note);
  expect_state(judge(NumaFacts{1}), State::ok);
  expect_state(judge(NumaFacts{2}), State::note);
  expect_state(judge(ClockFacts{"tsc", 25}), State::ok);
  expect_state(judge(ClockFacts{"hpet", 1500}), State::note);
  expect_state(judge(NetworkFacts{{{"eth0", {"10.0.0.1"}, 10'000}}, true}), State::ok);
  expect_state(judge(NetworkFacts{{}, true}), State::note);
  expect_state(judge(NetworkFacts{{}, false}), State::problem);
  expect_state(judge(ContainerFacts{"", 0}), State::ok);
}

TEST(Doctor, finds_misspelt_variables_and_values) {
  expect_state(judge(VariablesFacts{{}}), State::ok);
  expect_state(judge(VariablesFacts{{{"RESHARD_SHM", "ring"}, {"RESHARD_SIMD", "avx2"}}}),
               State::ok);
  const Finding misspelt = judge(VariablesFacts{{{"RESHARD_MODULE", "/opt"}}});
  expect_state(misspelt, State::note);
  EXPECT_NE(misspelt.effect.find("did you mean 'RESHARD_MODULES'?"), std::string::npos);
  expect_state(judge(VariablesFacts{{{"RESHARD_SIMD", "avx"}}}), State::note);
}

TEST(Doctor, judges_gpus) {
  expect_state(judge(GpuFacts{.why_none = "no NVIDIA driver: libcuda.so.1"}), State::absent);
  const Finding hidden = judge(GpuFacts{.why_none = "no GPU", .driver = "550.54.15"});
  expect_state(hidden, State::note);
  EXPECT_NE(hidden.remedy.find("--gpus"), std::string::npos);
  GpuFacts two{.gpus = {{"NVIDIA H200", 90}, {"NVIDIA H200", 90}}, .cuda = 12040};
  const Finding found = judge(two);
  expect_state(found, State::ok);
  EXPECT_EQ(found.value, "2 x NVIDIA H200 (9.0); driver unknown, CUDA 12.4");
  two.no_kernels = "this build of reshard has no code for GPUs";
  expect_state(judge(two), State::note);
}

TEST(Doctor, judges_transports) {
  TransportStatus t;
  t.name = "ucx";
  t.built = t.available = true;
  t.version = "UCX 1.13.1";
  t.purpose = "RDMA";
  expect_state(judge(t), State::ok);
  t.available = false;
  t.reason = "no library";
  expect_state(judge(t), State::absent);
  t.name = "shm";
  expect_state(judge(t), State::problem);
}

TEST(Doctor, a_child_hands_its_findings_over) {
  const Finding said{.name = "x",
                     .state = State::note,
                     .value = "a \"b\"\n",
                     .effect = std::string(100'000, 'y'),
                     .remedy = "z",
                     .figures = {{"n", Json(Index{5})}}};
  const auto found = look_in_child("x", 60, State::problem, [&] { return std::vector{said}; });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_json(found[0]).dump(), to_json(said).dump());
}

TEST(Doctor, a_child_that_crashes_or_hangs_is_a_finding) {
  const auto crashed = look_in_child("driver", 60, State::note, []() -> std::vector<Finding> {
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
  });
  ASSERT_EQ(crashed.size(), 1u);
  expect_state(crashed[0], State::note);
  EXPECT_EQ(crashed[0].value, "the test was killed by signal 6");
  const auto hung = look_in_child("disk", 0.05, State::problem, []() -> std::vector<Finding> {
    for (;;) ::pause();
  });
  ASSERT_EQ(hung.size(), 1u);
  expect_state(hung[0], State::problem);
  EXPECT_EQ(hung[0].name, "disk");
}

}  // namespace
}  // namespace reshard::cli::doctor
