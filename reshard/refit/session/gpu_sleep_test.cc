// SPDX-License-Identifier: Apache-2.0
// Protects: sources and targets whose GPU memory is unmapped between refits are refitted where they
// are; a refit into memory that is not there is an error that names the tensor and moves nothing.
#include <gtest/gtest.h>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/exec/gpu_side_testutil.h"
#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard {
namespace {

using cuda::emulated_gpu;

/// An engine whose memory sleeps, and a trainer on other ranks, all on GPUs.
SessionLayouts disjoint_job() {
  return {tiny_moe(), "megatron:tp=2,ep=2,etp=1", "vllm:tp=2,offset=2", 4};
}

constexpr Rank kTrainer(1), kEngine(3);

struct SleepyRank {
  SleepyRank(const SessionLayouts& job, Rank rank)
      : source(job.from, rank),
        target(job.to, rank),
        back(job.to, rank),
        source_bytes(source.host),
        target_bytes(target.host),
        me(rank) {}

  Result<Session> prepare(RankEnds& ends, const SessionOptions& options) const {
    return Session::prepare(
        *ends.transport, *ends.control,
        {.layout = source.host.shared_layout(), .buffers = source.buffers()},
        {.layout = target.host.shared_layout(),
         .buffers = target.buffers(),
         .back = options.buffering == Buffering::doubled ? back.buffers() : nullptr},
        options);
  }
  void train(std::int64_t version) const {
    source_bytes.fill(source.host, version);
    source.write();
  }
  Index wrong(const TargetVersion& version) const {
    const GpuSide& side = version.buffer == 0 ? target : back;
    side.read();
    return target_bytes.wrong(side.host, version.version);
  }

  GpuSide source, target, back;
  VersionedBytes source_bytes, target_bytes;
  Rank me;
};

void on_ranks_of(const SessionLayouts& job, const std::function<void(RankEnds&)>& body) {
  EXPECT_EQ(outcome(shm_processes("mapped,readv,ring")(job.ranks, body)), "");
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(job.ranks, body)), "");
}

TEST(SleepingSession, refits_what_has_woken) {
  for (const Buffering buffering : {Buffering::in_place, Buffering::doubled})
    for (const VerifyMode verify : {VerifyMode::never, VerifyMode::always}) {
      const SessionLayouts job = disjoint_job();
      on_ranks_of(job, [&](RankEnds& ends) {
        const SleepyRank mine(job, ends.rank());
        auto session = mine.prepare(ends, session_options(buffering, RefitPath::direct, verify));
        ASSERT_EQ(outcome(session), "");
        for (int version = 1; version < 6; ++version) {
          for (const GpuSide* side : {&mine.source, &mine.target, &mine.back})
            if (side->mapped) {
              side->mapped->sleep();
              side->mapped->wake();
            }
          mine.train(version);
          const auto report = session->refit(version);
          ASSERT_EQ(outcome(report), "");
          EXPECT_EQ(report->plan_seconds, 0);
          if (mine.target.buffers() != nullptr) {
            EXPECT_EQ(mine.wrong(session->target_version()), 0);
          }
        }
        EXPECT_EQ(session->path(), "direct");
        if (mine.source.mapped) mine.source.mapped->replace(0);
        mine.train(5);
        mine.source.read();
        EXPECT_EQ(outcome(session->verify()), "");
        EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
      });
    }
}

TEST(SleepingSession, names_a_tensor_that_is_asleep_and_moves_nothing) {
  const SessionLayouts job = disjoint_job();
  on_ranks_of(job, [&](RankEnds& ends) {
    const SleepyRank mine(job, ends.rank());
    auto session = mine.prepare(ends, session_options(Buffering::in_place, RefitPath::direct));
    ASSERT_EQ(outcome(session), "");
    mine.train(1);
    ASSERT_EQ(outcome(session->refit(1)), "");
    mine.train(2);
    if (mine.me == kEngine) mine.target.mapped->sleep();
    expect_error(session->refit(2), Code::invalid_argument,
                 {"rank 3: target tensor '", "wake the engine"});
    expect_error(session->verify(), Code::invalid_argument, {"rank 3: target tensor '"});
    if (mine.target.buffers() != nullptr) {
      EXPECT_EQ(session->target_version().version, 1);
      EXPECT_EQ(session->target_version().state, TargetState::whole);
      if (mine.me != kEngine) {
        EXPECT_EQ(mine.wrong(session->target_version()), 0);
      }
    }
    if (mine.me == kEngine) mine.target.mapped->wake();
    if (mine.me == kTrainer) mine.source.mapped->sleep();
    expect_error(session->refit(2), Code::invalid_argument,
                 {"rank 1: source tensor '", "map the weights again"});
    if (mine.me == kTrainer) mine.source.mapped->wake();
    mine.train(2);
    ASSERT_EQ(outcome(session->refit(2)), "");
    if (mine.target.buffers() != nullptr) {
      EXPECT_EQ(mine.wrong(session->target_version()), 0);
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST(SleepingSession, asks_the_driver_once_for_each_allocation_and_exports_only_what_changed) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const SessionLayouts job = disjoint_job();
  const auto ended = shm_processes("mapped,readv,ring")(job.ranks, [&](RankEnds& ends) {
    const SleepyRank mine(job, ends.rank());
    auto session = mine.prepare(ends, session_options(Buffering::in_place, RefitPath::direct));
    ASSERT_EQ(outcome(session), "");
    for (int version = 1; version < 5; ++version) {
      const bool renews = version == 3;
      if (renews && mine.me == kTrainer) mine.source.mapped->replace(0);
      mine.train(version);
      emulated_gpu().calls.clear();
      ASSERT_EQ(outcome(session->refit(version)), "");
      auto& calls = emulated_gpu().calls;
      EXPECT_EQ(calls["cuMemExportToShareableHandle"] > 0, renews && mine.me == kTrainer);
      EXPECT_EQ(calls["cuMemImportFromShareableHandle"] > 0,
                renews && mine.target.buffers() != nullptr);
      for (const char* never : {"cuMemAlloc", "cuMemFree", "cuStreamSynchronize", "cuMemcpyAsync"})
        EXPECT_EQ(calls[never], 0) << never;
      const auto chunks = [](const GpuSide& side) {
        return side.mapped ? side.mapped->size() / cuda::MappedMemory::kChunkBytes : 0;
      };
      if (!renews) {
        EXPECT_EQ(calls["cuPointerGetAttributes"], chunks(mine.source) + chunks(mine.target));
      }
      if (mine.target.buffers() != nullptr) {
        EXPECT_EQ(mine.wrong(session->target_version()), 0);
      }
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(SleepingSession, refits_memory_that_moved_if_it_may_plan_anew) {
  const SessionLayouts job = disjoint_job();
  on_ranks_of(job, [&](RankEnds& ends) {
    SleepyRank mine(job, ends.rank());
    SessionOptions options = session_options(Buffering::in_place, RefitPath::direct);
    options.replan = true;
    auto session = mine.prepare(ends, options);
    ASSERT_EQ(outcome(session), "");
    for (int version = 1; version < 4; ++version) {
      GpuSide moved(job.from, mine.me);
      if (version > 1 && mine.me == kTrainer) {
        std::swap(mine.source.mapped, moved.mapped);
        ASSERT_EQ(outcome(mine.source.on_gpu.bind_rank(
                      mine.me, {mine.source.mapped->data(),
                                static_cast<std::size_t>(mine.source.mapped->size())})),
                  "");
      }
      mine.train(version);
      ASSERT_EQ(outcome(session->refit(version)), "");
      if (mine.target.buffers() != nullptr) {
        EXPECT_EQ(mine.wrong(session->target_version()), 0);
      }
      EXPECT_EQ(outcome(ends.control->barrier(patient())), "");
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

}  // namespace
}  // namespace reshard
