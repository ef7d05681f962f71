// SPDX-License-Identifier: Apache-2.0
// Protects: a session writes the trace of each refit as a whole, all ranks know what it says, and a
// refit that fails leaves the events of each rank.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard {
namespace {

class TracedSession : public testing::TestWithParam<TransportUnderTest> {
 protected:
  TracedSession() {
    std::string name = testing::TempDir() + "traceXXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~TracedSession() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/trace.json"; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  std::string content(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }
  SessionOptions options(RefitPath path_of) const {
    SessionOptions options = session_options(Buffering::in_place, path_of, VerifyMode::always);
    options.trace.path = path();
    return options;
  }

  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, TracedSession,
                         testing::Values(TransportUnderTest{"threads",
                                                            run_group_as_threads<InprocGroup>},
                                         TransportUnderTest{"processes", shm_processes("mapped")}),
                         [](const auto& of) { return of.param.name; });

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
  return n;
}

TEST_P(TracedSession, writes_the_events_of_all_ranks_after_each_refit) {
  const SessionLayouts job = overlapping_job();
  for (const RefitPath path : {RefitPath::direct, RefitPath::message}) {
    const auto ended = GetParam().run(job.ranks, [&](RankEnds& ends) {
      const SessionMemory memory(job, ends.rank(), {.shared = true});
      auto session = memory.prepare(ends, options(path));
      ASSERT_EQ(outcome(session), "");
      EXPECT_EQ(session->why_slow(), nullptr);
      for (const int version : {4, 5}) {
        ASSERT_EQ(outcome(session->refit(version)), "");
        const WhySlow* why = session->why_slow();
        ASSERT_NE(why, nullptr);
        EXPECT_EQ(why->problem, "");
        EXPECT_GE(why->slowest_rank, Rank(0));
        EXPECT_GE(why->link_from, Rank(0));
        EXPECT_GT(why->bound_seconds, 0);
        // Once refit() returns on any rank, the file is that of this version.
        const std::string text = content("trace.json");
        EXPECT_EQ(count(text, "{\"version\": " + std::to_string(version) + ", \"clock_error_us\""),
                  1U);
        EXPECT_EQ(outcome(ends.control->barrier(patient())), "");
      }
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
    EXPECT_EQ(files(), std::vector<std::string>{"trace.json"});
    const std::string text = content("trace.json");
    EXPECT_EQ(count(text, "\"process_name\""), static_cast<std::size_t>(job.ranks));
    for (const char* phase : {"begin", "transfer", "check", "commit"})
      EXPECT_EQ(count(text, "\"cat\": \"phase\", \"name\": \"" + std::string(phase) + "\""),
                static_cast<std::size_t>(job.ranks));
    EXPECT_EQ(count(text, "\"ph\": \"s\"") > 0, path == RefitPath::message);
    EXPECT_EQ(count(text, "\"ph\": \"s\""), count(text, "\"ph\": \"f\""));
    EXPECT_EQ(count(text, "\"reads\"") > 0, path == RefitPath::direct);
    EXPECT_GT(count(text, "\"tensor\": \""), 0U);
  }
}

TEST_P(TracedSession, that_fails_leaves_the_events_of_each_rank) {
  const SessionLayouts job = overlapping_job();
  const auto ended = GetParam().run(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank(), {.shared = true});
    SessionOptions how = options(RefitPath::message);
    how.on_phase = [&](SessionPhase phase) -> Result<> {
      if (phase == SessionPhase::check && ends.rank() == Rank(1))
        return fail(Code::aborted, "not now");
      return {};
    };
    auto session = memory.prepare(ends, how);
    ASSERT_EQ(outcome(session), "");
    EXPECT_NE(outcome(session->refit(1)), "");
    EXPECT_EQ(session->why_slow(), nullptr);
  });
  EXPECT_EQ(outcome(ended), "");
  const auto names = files();
  EXPECT_EQ(names.size(), static_cast<std::size_t>(job.ranks));
  for (int r = 0; r < job.ranks; ++r) {
    const std::string text = content("trace.json.rank" + std::to_string(r));
    EXPECT_EQ(count(text, "\"process_name\""), 1U);
    EXPECT_EQ(count(text, "\"name\": \"transfer\""), 1U);
    EXPECT_TRUE(text.ends_with("\n]}\n"));
  }
}

TEST_P(TracedSession, that_only_some_ranks_want_is_an_error_on_all) {
  const SessionLayouts job = overlapping_job();
  const auto ended = GetParam().run(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank(), {.shared = true});
    SessionOptions how = options(RefitPath::direct);
    if (ends.rank() == Rank(2)) how.trace.path = "";
    const std::string error = outcome(memory.prepare(ends, how));
    EXPECT_NE(error.find("rank 2's session option trace (off) differs from rank 0's (on)"),
              std::string::npos)
        << error;
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST_P(TracedSession, whose_file_cannot_be_written_is_an_error_on_all) {
  const SessionLayouts job = overlapping_job();
  const auto ended = GetParam().run(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank(), {.shared = true});
    SessionOptions how = options(RefitPath::direct);
    how.trace.path = folder_ + "/none/trace.json";
    const std::string error = outcome(memory.prepare(ends, how));
    EXPECT_NE(error.find("rank 0: the trace: " + how.trace.path), std::string::npos) << error;
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST_P(TracedSession, whose_file_cannot_be_written_any_more_refits_and_says_so) {
  const SessionLayouts job = overlapping_job();
  const auto ended = GetParam().run(job.ranks, [&](RankEnds& ends) {
    const SessionMemory memory(job, ends.rank(), {.shared = true});
    auto session = memory.prepare(ends, options(RefitPath::direct));
    ASSERT_EQ(outcome(session), "");
    if (ends.rank() == Rank(0)) std::filesystem::create_directory(path());
    ASSERT_EQ(outcome(session->refit(1)), "");
    ASSERT_NE(session->why_slow(), nullptr);
    EXPECT_NE(session->why_slow()->problem.find("is not a file"), std::string::npos);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard
