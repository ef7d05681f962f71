// SPDX-License-Identifier: Apache-2.0
// Protects: ranks that are processes refit through a session; if one is killed at any point, every
// reader in every process finds a whole version or a torn mark.
#include <gtest/gtest.h>

#include <csignal>
#include <deque>
#include <functional>
#include <optional>

#include "reshard/refit/session/session_testutil.h"
#include "reshard/refit/session/targets_reader_testutil.h"
#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/fault_testutil.h"

namespace reshard {
namespace {

/// The state that a run leaves for the next one and for readers, in memory all processes share.
struct World {
  explicit World(SessionLayouts layouts) : job(std::move(layouts)), published(job.ranks) {
    for (int r = 0; r < job.ranks; ++r)
      memory.emplace_back(job, Rank(r), HostBuffer::Options{.shared = true});
  }
  bool has_target(Rank r) const { return memory[r.index()].target_side().buffers != nullptr; }

  Index wrong(Rank r, const TargetVersion& found) const { return memory[r.index()].wrong(found); }

  SessionLayouts job;
  SharedVersions published;
  std::deque<SessionMemory> memory;
};

struct Refits {
  Buffering buffering = Buffering::in_place;
  RefitPath path = RefitPath::automatic;
  VerifyMode verify = VerifyMode::never;
  std::vector<std::int64_t> versions;
  ProcessOptions processes = {};
  std::function<void(RankEnds&, SessionOptions&)> sabotage = nullptr;
};

/// A group of processes that refits these versions. Rank 0 reads all targets meanwhile.
void run(World& world, const Refits& what) {
  const bool dies = !what.processes.doomed.empty();
  const auto processes = shm_processes("mapped,readv,ring", what.processes);
  const auto ended = processes(world.job.ranks, [&](RankEnds& ends) {
    SessionMemory& memory = world.memory[ends.rank().index()];
    SessionOptions options =
        in_small_messages(session_options(what.buffering, what.path, what.verify));
    if (what.sabotage) what.sabotage(ends, options);
    auto session = memory.prepare(ends, options, &world.published.of(ends.rank()));
    if (dies && !session) return;
    ASSERT_EQ(outcome(session), "");
    std::optional<TargetsReader> reader;
    if (ends.rank() == Rank(0))
      reader.emplace(world.published, std::bind_front(&World::wrong, &world));
    for (const std::int64_t version : what.versions) {
      memory.source_bytes.fill(memory.source, version);
      const auto report = session->refit(version);
      if (dies && version == what.versions.back()) {
        expect_error(report, Code::aborted,
                     {"rank " + std::to_string(what.processes.doomed.front())});
        return;
      }
      ASSERT_EQ(outcome(report), "");
      EXPECT_EQ(report->plan_seconds, 0);
      EXPECT_EQ(memory.wrong(session->target_version()), 0);
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

void expect_no_lie(const World& world, Buffering buffering, std::int64_t old, std::int64_t now,
                   const std::string& what) {
  for (int r = 0; r < world.job.ranks; ++r) {
    if (!world.has_target(Rank(r))) continue;
    const TargetVersion found = world.published.of(Rank(r)).target_version();
    EXPECT_EQ(world.wrong(Rank(r), found), 0) << what << ", rank " << r;
    EXPECT_TRUE(found.version == old || found.version == now) << what << ", " << found.version;
    EXPECT_TRUE(found.state == TargetState::whole ||
                (buffering == Buffering::in_place && found.state == TargetState::torn))
        << what << ", rank " << r << " is " << name(found.state);
  }
}

struct KilledAt {
  std::string name;
  Buffering buffering;
  RefitPath path;
};
std::ostream& operator<<(std::ostream& out, const KilledAt& k) { return out << k.name; }

class SessionKills : public testing::TestWithParam<KilledAt> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, SessionKills,
    testing::Values(KilledAt{"in_place_direct", Buffering::in_place, RefitPath::direct},
                    KilledAt{"in_place_messages", Buffering::in_place, RefitPath::message},
                    KilledAt{"doubled_direct", Buffering::doubled, RefitPath::direct},
                    KilledAt{"doubled_messages", Buffering::doubled, RefitPath::message}),
    [](const auto& tested) { return tested.param.name; });

TEST_P(SessionKills, readers_in_other_processes_see_whole_versions_only) {
  const auto& [name, buffering, path] = GetParam();
  for (const VerifyMode verify : {VerifyMode::never, VerifyMode::always}) {
    World world(overlapping_job());
    std::vector<std::int64_t> versions;
    for (std::int64_t v = 0; v < 60; ++v) versions.push_back(v);
    run(world, {buffering, path, verify, versions});
    expect_no_lie(world, Buffering::doubled, 59, 59, name);
  }
}

/// Rank `doomed` is killed in the refit of version 2 when it enters `phase`; then a new group of
/// processes continues with the same memory and published versions.
TEST_P(SessionKills, in_any_phase_leave_whole_or_torn) {
  const auto& [way, buffering, path] = GetParam();
  for (const SessionPhase phase : {SessionPhase::begin, SessionPhase::transfer, SessionPhase::check,
                                   SessionPhase::commit, SessionPhase::committed})
    for (const int doomed : {1, 3, 6}) {
      World world(overlapping_job());
      Refits what{buffering, path, VerifyMode::never, {1, 2}};
      what.processes.doomed = {doomed};
      what.sabotage = [&, doomed = doomed](RankEnds& ends, SessionOptions& options) {
        if (ends.rank() != Rank(doomed)) return;
        options.on_phase = [&, refits = 0](SessionPhase now) mutable -> Result<> {
          refits += now == SessionPhase::begin ? 1 : 0;
          if (refits == 2 && now == phase) raise(SIGKILL);
          return {};
        };
      };
      run(world, what);
      const std::string text =
          way + ", " + std::string(name(phase)) + ", rank " + std::to_string(doomed);
      expect_no_lie(world, buffering, 1, 2, text);
      run(world, {buffering, path, VerifyMode::always, {3, 4}});
      expect_no_lie(world, Buffering::doubled, 4, 4, text);
    }
}

/// The same before one of the rank's messages, of which the direct path has some in prepare().
TEST_P(SessionKills, between_messages_leave_whole_or_torn) {
  const auto& [way, buffering, path] = GetParam();
  for (const int doomed : {1, 3})
    for (const std::uint64_t message : {0UL, 1UL, 5UL, 20UL}) {
      World world(overlapping_job());
      Refits what{buffering, path, VerifyMode::never, {1}};
      run(world, what);
      what.versions = {2};
      what.processes.doomed = {doomed};
      what.sabotage = [&, doomed = doomed](RankEnds& ends, SessionOptions& options) {
        if (ends.rank() != Rank(doomed)) return;
        FaultPlan plan{{{Fault::Kind::kill, message, 1}}, 0};
        plan.on_kill = [] { raise(SIGKILL); };
        ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
        // Where it has no message of this number, it dies at the end of its transfer.
        options.on_phase = [](SessionPhase now) -> Result<> {
          if (now == SessionPhase::check) raise(SIGKILL);
          return {};
        };
      };
      run(world, what);
      const std::string text = way + ", message " + std::to_string(message);
      expect_no_lie(world, buffering, 1, 2, text);
      run(world, {buffering, path, VerifyMode::always, {3}});
      expect_no_lie(world, Buffering::doubled, 3, 3, text);
    }
}

}  // namespace
}  // namespace reshard
