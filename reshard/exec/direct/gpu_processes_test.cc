// SPDX-License-Identifier: Apache-2.0
// Protects: ranks with GPU memory on one host read each other's, in processes and in threads, over
// any transport; memory that changes between refits is opened anew; what cannot be shared travels
// by messages, with the reason; and a death, an abort and a deadline are errors of all, after which
// no peer reads a rank's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/exec/gpu_side_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/loopback_testutil.h"

namespace reshard {
namespace {

using cuda::emulated_gpu;

constexpr int kRanks = 4, kAllocated = -1;

Planner four_ranks() {
  return planner_of({"four", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4", kRanks});
}

/// One rank, with all of its memory on the GPU.
struct GpuRank {
  GpuRank(const Planner& plan, Rank rank, int source_kind, int target_kind = kAllocated)
      : planner(plan),
        source(plan.shared_source(), rank, source_kind),
        target(plan.shared_target(), rank, target_kind),
        me(rank) {
    fill_values(source.host);
    source.write();
  }

  Result<RankRefit> prepare(RankEnds& ends, RefitPath path = RefitPath::automatic,
                            double seconds = 60) const {
    RankRefitOptions options;
    options.path = path;
    options.seconds = seconds;
    return RankRefit::prepare(planner, source.buffers(), target.buffers(), *ends.transport,
                              *ends.control, options);
  }
  /// Into zeros, without waiting for them.
  void clear_target() const {
    for (const auto memory : target.host.memory(me)) std::memset(memory.data(), 0, memory.size());
    target.write();
  }
  Index wrong() const {
    target.read();
    return count_wrong_values(planner, target.host);
  }
  Result<> run(RankRefit& refit) const {
    clear_target();
    RESHARD_TRY(refit.run());
    EXPECT_EQ(wrong(), 0) << "rank " << me.value();
    return {};
  }

  const Planner& planner;
  GpuSide source, target;
  Rank me;
};

/// Real GPUs may have no fabric.
std::vector<int> kinds() {
  std::vector<int> out{kAllocated, cuda::kFileHandle};
  if (cuda::is_emulated()) out.push_back(cuda::kFabricHandle);
  return out;
}

using Runner = std::function<Result<>(int, const RankBody&)>;

/// Processes first: where the GPU is real, a process that has used it cannot fork others that do.
std::vector<std::pair<std::string, Runner>> runners() {
  return {{"shm", shm_processes("mapped,readv,ring")},
          {"rings", shm_processes("ring,passed")},
          {"threads", run_group_as_threads<InprocGroup>},
          {"messages only", run_group_as_threads<LoopbackGroup<LoopbackMethod::tagged>>}};
}

TEST(GpuPeers, read_every_kind_of_memory_over_any_transport) {
  for (const auto& [name, run] : runners())
    for (const int kind : kinds()) {
      SCOPED_TRACE(name + ", " + std::to_string(kind));
      const Planner planner = four_ranks();
      const auto ended = run(kRanks, [&](RankEnds& ends) {
        const GpuRank mine(planner, ends.rank(), kind);
        auto refit = mine.prepare(ends, RefitPath::direct);
        ASSERT_EQ(outcome(refit), "");
        EXPECT_EQ(refit->path(), "direct");
        EXPECT_EQ(refit->reason(), "");
        for (int i = 0; i < 2; ++i) EXPECT_EQ(outcome(mine.run(*refit)), "");
        EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
      });
      EXPECT_EQ(outcome(ended), "");
    }
}

TEST(GpuPeers, send_messages_where_memory_cannot_be_shared_and_say_why) {
  const Planner planner = four_ranks();
  const auto ended = shm_processes("mapped,readv,ring")(kRanks, [&](RankEnds& ends) {
    const bool shares = ends.rank() != Rank(1);
    const GpuRank mine(planner, ends.rank(), shares ? cuda::kFileHandle : cuda::kNoHandle);
    auto refit = mine.prepare(ends);
    ASSERT_EQ(outcome(refit), "");
    EXPECT_EQ(refit->path(), "mixed");
    EXPECT_NE(refit->reason().find("rank 1 cannot share its memory: its memory was created without"
                                   " a type of handle"),
              std::string::npos)
        << refit->reason();
    EXPECT_EQ(outcome(mine.run(*refit)), "");
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(GpuPeers, without_a_way_are_an_error_if_the_direct_path_was_asked_for) {
  const Planner planner = four_ranks();
  const auto ended = shm_processes("mapped,readv,ring")(kRanks, [&](RankEnds& ends) {
    const GpuRank mine(planner, ends.rank(), cuda::kNoHandle);
    expect_error(mine.prepare(ends, RefitPath::direct), Code::unsupported,
                 {"direct path", "requestedHandleTypes"});
  });
  EXPECT_EQ(outcome(ended), "");
}

/// Expects refits to work after `change` has altered the memory of sources, on each rank.
void expect_renewed(int kind, const std::function<void(GpuRank&)>& change) {
  for (const auto& [name, run] : runners()) {
    SCOPED_TRACE(name);
    const Planner planner = four_ranks();
    const auto ended = run(kRanks, [&](RankEnds& ends) {
      GpuRank mine(planner, ends.rank(), kind);
      auto refit = mine.prepare(ends, RefitPath::direct);
      ASSERT_EQ(outcome(refit), "");
      for (int i = 0; i < 3; ++i) {
        change(mine);
        mine.source.write();
        ASSERT_EQ(outcome(refit->renew_memory()), "");
        ASSERT_EQ(outcome(mine.run(*refit)), "");
      }
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
}

TEST(GpuPeers, read_memory_that_was_mapped_anew) {
  expect_renewed(cuda::kFileHandle, [](GpuRank& mine) {
    mine.source.mapped->sleep();
    mine.source.mapped->wake();
  });
}

TEST(GpuPeers, read_a_chunk_of_one_rank_that_was_mapped_anew) {
  expect_renewed(cuda::kFileHandle, [](GpuRank& mine) {
    if (mine.me == Rank(2)) mine.source.mapped->replace(0);
  });
}

TEST(GpuPeers, read_memory_that_stayed) {
  expect_renewed(cuda::kFileHandle, [](GpuRank&) {});
}

TEST(GpuPeers, read_memory_that_was_freed_and_allocated_at_the_same_address) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "a real GPU chooses other addresses";
  expect_renewed(kAllocated, [](GpuRank& mine) {
    if (mine.me == Rank(2)) {
      EXPECT_TRUE(mine.source.reallocate());
    }
  });
}

TEST(GpuPeers, open_only_what_changed) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Planner planner = four_ranks();
  const auto ended = shm_processes("mapped,readv,ring")(kRanks, [&](RankEnds& ends) {
    GpuRank mine(planner, ends.rank(), cuda::kFileHandle);
    auto refit = mine.prepare(ends);
    ASSERT_EQ(outcome(refit), "");
    ASSERT_EQ(outcome(mine.run(*refit)), "");
    emulated_gpu().calls.clear();
    if (mine.me == Rank(2)) mine.source.mapped->replace(0);
    mine.source.write();
    ASSERT_EQ(outcome(refit->renew_memory()), "");
    EXPECT_EQ(emulated_gpu().calls["cuMemExportToShareableHandle"] > 0, mine.me == Rank(2));
    EXPECT_EQ(emulated_gpu().calls["cuMemAlloc"], 0);  // No table was made anew.
    ASSERT_EQ(outcome(mine.run(*refit)), "");
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(GpuPeers, whose_memory_cannot_be_shared_any_more_end_the_refit) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Planner planner = four_ranks();
  const auto ended = shm_processes("mapped,readv,ring")(kRanks, [&](RankEnds& ends) {
    GpuRank mine(planner, ends.rank(), cuda::kFileHandle);
    auto refit = mine.prepare(ends);
    ASSERT_EQ(outcome(refit), "");
    if (mine.me == Rank(2)) {
      mine.source.mapped->replace(0);
      emulated_gpu().faults["cuMemExportToShareableHandle"] = 999;
    }
    Result<> renewed = refit->renew_memory();
    if (renewed) renewed = mine.run(*refit);
    ASSERT_FALSE(renewed);
    EXPECT_NE(renewed.error().message.find("the memory of rank 2 changed"), std::string::npos)
        << renewed.error().message;
  });
  EXPECT_EQ(outcome(ended), "");
}

/// A fault of the driver, on rank 1, while it prepares.
TEST(GpuPeers, with_a_driver_that_fails_send_messages_or_get_an_error) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Planner planner = four_ranks();
  for (const char* name :
       {"cuMemGetAddressRange", "cuPointerGetAttributes", "cuMemRetainAllocationHandle",
        "cuMemGetAllocationPropertiesFromHandle", "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(name);
    const auto ended = shm_processes("mapped,readv,ring")(kRanks, [&](RankEnds& ends) {
      const GpuRank mine(planner, ends.rank(), cuda::kFileHandle);
      if (mine.me == Rank(1)) emulated_gpu().faults[name] = 999;
      auto refit = mine.prepare(ends);
      ASSERT_EQ(outcome(refit), "");
      EXPECT_TRUE(emulated_gpu().faults.empty());
      EXPECT_EQ(refit->path(), "mixed");
      EXPECT_NE(refit->reason().find(name), std::string::npos) << refit->reason();
      EXPECT_NE(refit->reason().find("rank 1"), std::string::npos) << refit->reason();
      EXPECT_EQ(outcome(mine.run(*refit)), "");
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
}

TEST(GpuPeers, neither_allocate_nor_synchronise_in_steady_state) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Planner planner = four_ranks();
  const auto ended = shm_processes("mapped,readv,ring")(kRanks, [&](RankEnds& ends) {
    const GpuRank mine(planner, ends.rank(), cuda::kFileHandle);
    auto refit = mine.prepare(ends);
    ASSERT_EQ(outcome(refit), "");
    for (int i = 0; i < 3; ++i) {
      mine.clear_target();
      emulated_gpu().calls.clear();
      ASSERT_EQ(outcome(refit->run()), "");
      EXPECT_EQ(emulated_gpu().calls["cuLaunchKernel"], 1);
      for (const auto& [name, times] : emulated_gpu().calls) {
        constexpr std::array kAllowed{"cuCtxPushCurrent", "cuCtxPopCurrent",   "cuLaunchKernel",
                                      "cuEventRecord",    "cuStreamWaitEvent", "cuEventQuery"};
        EXPECT_NE(std::ranges::find(kAllowed, name), kAllowed.end()) << name;
      }
      EXPECT_EQ(mine.wrong(), 0);
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

/// Ranks that wait for each other without their group, which has ended.
class Survivors {
 public:
  explicit Survivors(int count) : count_(count) {}
  void meet(Rank me) const {
    for (const ProcessEvent& event : arrived_) event.happen();
    arrived_[me.index()].wait(count_);
  }

 private:
  int count_;
  std::array<ProcessEvent, kRanks> arrived_;
};

constexpr int kPoison = 0xEE;

Index count_poisoned(const GpuSide& target, Rank me) {
  target.read();
  Index count = 0;
  for (const auto memory : target.host.memory(me))
    for (std::size_t i = 0; i + 1 < memory.size(); i += 2)
      count += memory[i] == std::byte{kPoison} && memory[i + 1] == std::byte{kPoison};
  return count;
}

/// Rank `bad` does `instead` of its second run. All others get an error; then they overwrite their
/// sources, and no new byte reaches a target.
void expect_errors_of_all(int bad, bool dies, double seconds, std::vector<Code> codes,
                          const std::function<void(ControlPlane&)>& instead) {
  const Planner planner = four_ranks();
  const Survivors survivors(dies ? kRanks - 1 : kRanks);
  ProcessOptions processes;
  if (dies) processes.doomed = {bad};
  const auto ended = shm_processes("mapped,readv,ring", processes)(kRanks, [&](RankEnds& ends) {
    const GpuRank mine(planner, ends.rank(), cuda::kFileHandle);
    auto refit = mine.prepare(ends, RefitPath::automatic, seconds);
    ASSERT_EQ(outcome(refit), "");
    ASSERT_EQ(outcome(mine.run(*refit)), "");
    mine.clear_target();
    if (mine.me == Rank(bad)) {
      instead(*ends.control);
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    } else {
      const auto done = refit->run();
      ASSERT_FALSE(done);
      EXPECT_NE(std::ranges::find(codes, done.error().code), codes.end()) << done.error().message;
      EXPECT_EQ(done.error().message.find("may still be in use"), std::string::npos)
          << done.error().message;
    }
    for (const auto memory : mine.source.host.memory(mine.me))
      std::memset(memory.data(), kPoison, memory.size());
    mine.source.write();
    mine.source.read();
    survivors.meet(mine.me);
    EXPECT_EQ(count_poisoned(mine.target, mine.me), 0);
    survivors.meet(mine.me);
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(GpuPeers, that_are_killed_are_an_error_of_all_others) {
  for (const int bad : {1, 2, 3})
    expect_errors_of_all(bad, true, 60, {Code::aborted}, [](ControlPlane&) { raise(SIGKILL); });
}

TEST(GpuPeers, that_abort_or_do_not_come_are_an_error_of_all_others) {
  expect_errors_of_all(2, false, 60, {Code::aborted},
                       [](ControlPlane& control) { control.abort("the operator stopped it"); });
  // A real GPU takes a second to open.
  const double seconds = cuda::is_emulated() ? 0.3 : 10;
  expect_errors_of_all(1, false, seconds, {Code::aborted, Code::deadline},
                       [](ControlPlane& control) {
                         while (control.status()) std::this_thread::yield();
                       });
}

TEST(GpuPeers, read_what_an_owner_that_died_had_and_do_not_crash) {
  const Planner planner = four_ranks();
  ProcessOptions processes;
  processes.doomed = {1};
  const auto ended = shm_processes("mapped,readv,ring", processes)(kRanks, [&](RankEnds& ends) {
    const GpuRank mine(planner, ends.rank(), cuda::kFileHandle);
    auto refit = mine.prepare(ends);
    ASSERT_EQ(outcome(refit), "");
    if (mine.me == Rank(1)) raise(SIGKILL);
    mine.source.mapped->replace(0);
    Result<> renewed = refit->renew_memory();
    if (renewed) {
      auto done = refit->run();
      if (!done) renewed = tl::unexpected(done.error());
    }
    expect_error(renewed, Code::aborted, {"rank 1"});
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard
