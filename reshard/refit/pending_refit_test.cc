// SPDX-License-Identifier: Apache-2.0
// Protects: a refit in a thread of its own delivers its version whole while the sources are written
// as soon as they are free, and tells when that is; snapshots free them at once.
#include "reshard/refit/pending_refit.h"

#include <gtest/gtest.h>

#include <latch>
#include <random>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

void on_all(int ranks, const RankBody& body) {
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(ranks, body)), "");
}

class PendingRefits : public testing::TestWithParam<std::tuple<Buffering, RefitPath, bool>> {
 protected:
  static SessionOptions options() {
    const auto [buffering, path, snapshot] = GetParam();
    SessionOptions out = session_options(buffering, path, VerifyMode::always);
    out.snapshot = snapshot;
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, PendingRefits,
                         testing::Combine(testing::Values(Buffering::in_place, Buffering::doubled),
                                          testing::Values(RefitPath::direct, RefitPath::message),
                                          testing::Bool()));

TEST_P(PendingRefits, deliver_their_version_while_sources_are_written) {
  const SessionLayouts job = overlapping_job();
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank());
    auto session = memory.prepare(ends, options());
    ASSERT_EQ(outcome(session), "");
    std::minstd_rand random(static_cast<unsigned>(ends.rank().value()) + 1);
    memory.source_bytes.fill(memory.source, 1);
    for (std::int64_t version = 1; version <= 20; ++version) {
      const auto pending = session->refit_async(version);
      ASSERT_EQ(outcome(pending), "");
      EXPECT_TRUE(!options().snapshot || memory.source.ranks().empty() || pending->sources_free());
      for (auto n = random() % 4; n > 0; --n) std::this_thread::yield();
      ASSERT_TRUE(pending->wait_sources_free(patient()));
      memory.source_bytes.fill(memory.source, version + 1);
      const auto report = pending->result();
      ASSERT_EQ(outcome(report), "");
      EXPECT_TRUE(pending->done());
      EXPECT_EQ(report->version, version);
      EXPECT_EQ(report->snapshot_seconds > 0, options().snapshot && !memory.source.ranks().empty());
      const TargetVersion now = session->target_version();
      EXPECT_EQ(memory.wrong(now), 0);
      EXPECT_EQ(now.version, memory.target_side().buffers != nullptr ? version : -1);
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST_P(PendingRefits, report_the_pause_of_readers_apart) {
  const SessionLayouts job = overlapping_job();
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank());
    auto session = memory.prepare(ends, options());
    ASSERT_EQ(outcome(session), "");
    const auto report = session->refit(1);
    ASSERT_EQ(outcome(report), "");
    if (memory.target_side().buffers == nullptr) {
      EXPECT_EQ(report->pause_seconds, 0);
    } else if (options().buffering == Buffering::in_place) {
      EXPECT_GE(report->pause_seconds, report->move_seconds);
      EXPECT_LE(report->pause_seconds, report->seconds);
    } else {
      EXPECT_GT(report->pause_seconds, 0);
      EXPECT_LE(report->pause_seconds, report->commit_seconds);
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

/// Without a snapshot, in place, by messages; no verification.
SessionOptions plain() {
  return session_options(Buffering::in_place, RefitPath::message, VerifyMode::never);
}

TEST(PendingRefit, says_that_sources_are_in_use_until_all_ranks_have_their_bytes) {
  const SessionLayouts job = overlapping_job();
  std::latch seen(job.ranks);
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank());
    SessionOptions options = plain();
    // The last rank enters the transfer when all have looked.
    options.on_phase = [&](SessionPhase phase) -> Result<> {
      if (phase == SessionPhase::transfer && ends.rank().value() == job.ranks - 1) seen.wait();
      return {};
    };
    auto session = memory.prepare(ends, options);
    ASSERT_EQ(outcome(session), "");
    const auto pending = session->refit_async(1);
    ASSERT_EQ(outcome(pending), "");
    EXPECT_FALSE(pending->sources_free());
    EXPECT_FALSE(pending->wait_sources_free(Deadline::after(std::chrono::milliseconds(1))));
    EXPECT_FALSE(pending->done());
    seen.count_down();
    EXPECT_EQ(outcome(pending->result()), "");
    EXPECT_TRUE(pending->sources_free());
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST(PendingRefit, is_the_only_call_of_its_session) {
  const SessionLayouts job = overlapping_job();
  std::latch tried(job.ranks);
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank());
    SessionOptions options = plain();
    options.on_phase = [&](SessionPhase phase) -> Result<> {
      if (phase == SessionPhase::transfer) tried.wait();
      return {};
    };
    auto session = memory.prepare(ends, options);
    ASSERT_EQ(outcome(session), "");
    bool ended = false;
    const auto pending = session->refit_async(1, [&] { ended = true; });
    ASSERT_EQ(outcome(pending), "");
    for (const std::string& said :
         {outcome(session->refit(2)), outcome(session->refit_async(2)), outcome(session->verify())})
      EXPECT_NE(said.find("a refit of this session is in progress"), std::string::npos) << said;
    tried.count_down();
    EXPECT_EQ(outcome(pending->result()), "");
    EXPECT_TRUE(ended);
    EXPECT_EQ(outcome(session->refit(2)), "");
    // The session waits for a refit that nobody asks about.
    ASSERT_EQ(outcome(session->refit_async(3)), "");
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST(PendingRefit, fails_on_all_ranks) {
  const SessionLayouts job = overlapping_job();
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank());
    SessionOptions options = plain();
    options.on_phase = [&](SessionPhase phase) -> Result<> {
      if (phase == SessionPhase::check && ends.rank().value() == 4)
        return fail(Code::aborted, "the engine is out of order");
      return {};
    };
    auto session = memory.prepare(ends, options);
    ASSERT_EQ(outcome(session), "");
    const auto pending = session->refit_async(1);
    ASSERT_EQ(outcome(pending), "");
    const std::string said = outcome(pending->result());
    EXPECT_NE(said.find("the engine is out of order"), std::string::npos) << said;
    EXPECT_TRUE(pending->done() && pending->sources_free());
  });
}

TEST(Snapshot, follows_sources_to_other_memory_and_other_layouts) {
  const SessionLayouts job = overlapping_job();
  const auto again =
      SessionLayouts(tiny_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4,offset=3", job.ranks);
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank()), other(job, ends.rank()),
        equal({again.from, job.to, job.ranks}, ends.rank());
    SessionOptions options = session_options(Buffering::in_place, RefitPath::direct);
    options.snapshot = true;
    auto session = memory.prepare(ends, options);
    ASSERT_EQ(outcome(session), "");
    std::int64_t version = 0;
    // The same layout object elsewhere needs no plan; another object needs memory of its own.
    for (const SessionMemory* now : {&memory, &other, &memory}) {
      session->update(now->source_side(), memory.target_side());
      now->source_bytes.fill(now->source, ++version);
      const auto report = session->refit(version);
      ASSERT_EQ(outcome(report), "");
      EXPECT_EQ(report->plan_seconds, 0);
      EXPECT_EQ(memory.wrong(session->target_version()), 0);
    }
    session->update(equal.source_side(), memory.target_side());
    const std::string said = outcome(session->refit(version + 1));
    EXPECT_NE(said.find("is at another address"), std::string::npos) << said;
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST(Snapshot, tells_all_ranks_what_is_wrong_with_a_source) {
  const SessionLayouts job = overlapping_job();
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank());
    SessionOptions options = plain();
    options.snapshot = true;
    SessionSide source = memory.source_side();
    auto session = memory.prepare(ends, options);
    ASSERT_EQ(outcome(session), "");
    if (ends.rank().value() == 1) source.trouble = "tensor 'x' was freed";
    session->update(source, memory.target_side());
    const auto pending = session->refit_async(1);
    ASSERT_EQ(outcome(pending), "");
    const std::string said = outcome(pending->result());
    EXPECT_NE(said.find("rank 1: tensor 'x' was freed"), std::string::npos) << said;
    session->update(memory.source_side(), memory.target_side());
    EXPECT_EQ(outcome(session->refit(1)), "");
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST(Snapshot, copies_sources_from_a_gpu) {
  for (const RefitLayouts& layouts : refit_layouts()) {
    const Planner planner = planner_of(layouts);
    const auto mine = [](const std::shared_ptr<const ModelLayout>& layout, Rank me) {
      const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
      return RefitRankSide{*RankBuffers::allocate(layout, ranks), true};
    };
    on_all(layouts.ranks, [&](RankEnds& ends) {
      const RefitRankSide from = mine(planner.shared_source(), ends.rank()),
                          to = mine(planner.shared_target(), ends.rank());
      fill_values(from.host);
      ASSERT_EQ(outcome(from.write()), "");
      ASSERT_EQ(outcome(to.write()), "");
      SessionOptions options;
      options.snapshot = true;
      auto session =
          Session::prepare(*ends.transport, *ends.control,
                           {.layout = planner.shared_source(), .buffers = from.buffers()},
                           {.layout = planner.shared_target(), .buffers = to.buffers()}, options);
      ASSERT_EQ(outcome(session), "");
      const auto pending = session->refit_async(1);
      ASSERT_EQ(outcome(pending), "");
      ASSERT_EQ(outcome(pending->result()), "");
      ASSERT_EQ(outcome(to.read()), "");
      EXPECT_EQ(count_wrong_values(planner, to.host), 0) << layouts.name;
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
  }
}

}  // namespace
}  // namespace reshard
