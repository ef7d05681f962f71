// SPDX-License-Identifier: Apache-2.0
// Protects: if a process is killed at any point of a refit of quantised weights, whichever side
// quantises, every reader in every process finds a whole version or a torn mark, and the next group
// can continue.
#include <gtest/gtest.h>

#include <csignal>
#include <deque>
#include <functional>
#include <optional>

#include "reshard/refit/session/quantised_memory_testutil.h"
#include "reshard/refit/session/targets_reader_testutil.h"
#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/fault_testutil.h"

namespace reshard::quantised {
namespace {

/// This rank has neither side; its process reads all targets meanwhile.
constexpr int kReader = 7;

/// Memory and published versions of all ranks, shared by all processes, and the bytes of each
/// version.
class World {
 public:
  World() {
    for (int r = 0; r < size(); ++r) memory.emplace_back(job(1), Rank(r));
  }

  static int size() { return small_case().ranks; }
  /// Made once, before any fork: filling one takes longer than a refit.
  static const Job& job(std::int64_t version) {
    static const auto jobs = [] {
      std::vector<std::unique_ptr<Job>> out;
      for (std::int64_t v = 0; v < 4; ++v) {
        out.push_back(std::make_unique<Job>(small_case()));
        out.back()->fill(v);
      }
      return out;
    }();
    return *jobs[static_cast<std::size_t>(version)];
  }
  Index wrong(Rank r, const TargetVersion& found) const {
    return found.state == TargetState::whole ? memory[r.index()].wrong(found, job(found.version))
                                             : 0;
  }

  SharedVersions published{size()};
  std::deque<Memory> memory;
};

using Sabotage = std::function<void(RankEnds&, SessionOptions&)>;

/// A group of processes that refits these versions; the last of them is not done where one dies.
void run(World& world, const Way& way, const std::vector<std::int64_t>& versions, int doomed = -1,
         const Sabotage& sabotage = nullptr) {
  ProcessOptions processes;
  if (doomed >= 0) processes.doomed = {doomed};
  const auto body = [&](RankEnds& ends) {
    const Rank me = ends.rank();
    const Memory& memory = world.memory[me.index()];
    SessionOptions options = options_of(way);
    if (me == Rank(doomed)) sabotage(ends, options);
    auto session = Session::prepare(*ends.transport, *ends.control, memory.source(World::job(1)),
                                    memory.target(World::job(1), world.published.of(me)), options);
    if (doomed >= 0 && !session) return;
    ASSERT_EQ(outcome(session), "");
    std::optional<TargetsReader> reader;
    if (me == Rank(kReader))
      reader.emplace(world.published, std::bind_front(&World::wrong, &world));
    for (const std::int64_t version : versions) {
      copy_to(*World::job(version).source.stored, memory.from, me);
      const auto report = session->refit(version);
      // The control plane's server may exit before all ranks know that the last refit is done.
      if (doomed >= 0 && (version == versions.back() || (doomed == 0 && !report)))
        return expect_error(report, Code::aborted, {"rank " + std::to_string(doomed)});
      ASSERT_EQ(outcome(report), "");
      EXPECT_EQ(world.wrong(me, session->target_version()), 0);
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  };
  const auto all = shm_processes("mapped,readv,ring", processes);
  EXPECT_EQ(outcome(all(World::size(), body)), "");
}

void expect_no_lie(const World& world, Buffering buffering, std::int64_t old, std::int64_t now,
                   const std::string& what) {
  for (int r = 0; r < World::size(); ++r) {
    if (!world.memory[static_cast<std::size_t>(r)].has_target()) continue;
    const TargetVersion found = world.published.of(Rank(r)).target_version();
    EXPECT_EQ(world.wrong(Rank(r), found), 0) << what << ", rank " << r;
    EXPECT_TRUE(may_be_seen(found, buffering, old, now))
        << what << ", rank " << r << " is " << name(found.state) << " at " << found.version;
  }
}

class QuantisedKills : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, QuantisedKills, testing::ValuesIn(few_fault_ways()),
                         [](const auto& tested) { return tested.param.name; });

/// A trainer, a trainer that is an engine, an engine; and rank 0, which serves the control plane.
/// Each way runs half of the combinations of phase and rank; the ways together run all.
TEST_P(QuantisedKills, in_any_phase_leave_whole_or_torn) {
  const std::vector<SessionPhase> phases{SessionPhase::begin, SessionPhase::transfer,
                                         SessionPhase::check, SessionPhase::commit,
                                         SessionPhase::committed};
  const std::vector<int> ranks{0, 1, 3, 6};
  for (const auto& [phase, doomed] : combinations(phases, ranks, 2, first_of(GetParam().name))) {
    World world;
    run(world, GetParam(), {1, 2}, doomed, [phase = phase](RankEnds&, SessionOptions& options) {
      options.on_phase = [phase, refits = 0](SessionPhase now) mutable -> Result<> {
        refits += now == SessionPhase::begin ? 1 : 0;
        if (refits == 2 && now == phase) raise(SIGKILL);
        return {};
      };
    });
    const std::string text = std::string(name(phase)) + ", rank " + std::to_string(doomed);
    expect_no_lie(world, GetParam().buffering, 1, 2, text);
    run(world, GetParam(), {3});
    expect_no_lie(world, Buffering::doubled, 3, 3, text);
  }
}

/// The same before one of the rank's messages.
TEST_P(QuantisedKills, between_messages_leave_whole_or_torn) {
  for (const int doomed : {1, 3})
    for (const std::uint64_t message : {0UL, 5UL, 30UL, 90UL}) {
      World world;
      run(world, GetParam(), {1});
      run(world, GetParam(), {2}, doomed, [&](RankEnds& ends, SessionOptions& options) {
        FaultPlan plan{{{Fault::Kind::kill, message, 1}}, 0};
        plan.on_kill = [] { raise(SIGKILL); };
        ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
        // Where it has no message of this number, it dies at the end of its transfer.
        options.on_phase = [](SessionPhase now) -> Result<> {
          if (now == SessionPhase::check) raise(SIGKILL);
          return {};
        };
      });
      const std::string text = "rank " + std::to_string(doomed) + ", " + std::to_string(message);
      expect_no_lie(world, GetParam().buffering, 1, 2, text);
      run(world, GetParam(), {3});
      expect_no_lie(world, Buffering::doubled, 3, 3, text);
    }
}

}  // namespace
}  // namespace reshard::quantised
