// SPDX-License-Identifier: Apache-2.0
// Protects: a session refits version after version, and reports what it cannot do before it does
// anything.
#include "reshard/refit/session.h"

#include <gtest/gtest.h>

#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

/// Runs body(ends) on every rank of a group of threads.
void on_all(int ranks, const RankBody& body) {
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(ranks, body)), "");
}

SessionOptions options_of(Buffering buffering, RefitPath path = RefitPath::automatic) {
  return session_options(buffering, path, VerifyMode::always);
}

class Sessions : public testing::TestWithParam<std::tuple<Buffering, RefitPath>> {};
INSTANTIATE_TEST_SUITE_P(Ways, Sessions,
                         testing::Combine(testing::Values(Buffering::in_place, Buffering::doubled),
                                          testing::Values(RefitPath::direct, RefitPath::message)));

TEST_P(Sessions, refit_version_after_version) {
  const auto [buffering, path] = GetParam();
  const SessionLayouts job = overlapping_job();
  on_all(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank());
    auto session = memory.prepare(ends, options_of(buffering, path));
    ASSERT_EQ(outcome(session), "");
    EXPECT_EQ(session->target_version(), TargetVersion{});
    EXPECT_EQ(session->path(), path == RefitPath::direct ? "direct" : "message");
    for (const std::int64_t version : {0, 1, 2, 7}) {
      memory.source_bytes.fill(memory.source, version);
      const auto report = session->refit(version);
      ASSERT_EQ(outcome(report), "");
      EXPECT_EQ(report->version, version);
      EXPECT_EQ(report->plan_seconds, 0);
      const bool has_target = memory.target_side().buffers != nullptr;
      EXPECT_EQ(session->target_version().state,
                has_target ? TargetState::whole : TargetState::empty);
      EXPECT_EQ(session->target_version().version, has_target ? version : -1);
      EXPECT_EQ(memory.wrong(session->target_version()), 0);
      EXPECT_EQ(outcome(session->verify()), "");
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

}  // namespace
}  // namespace reshard
