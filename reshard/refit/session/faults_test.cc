// SPDX-License-Identifier: Apache-2.0
// Protects: whatever fails, in whichever phase of a refit and on whichever rank, readers find a
// whole version or a torn mark, and a new group can continue.
#include <gtest/gtest.h>

#include <atomic>
#include <deque>

#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/fault_testutil.h"

namespace reshard {
namespace {

/// Memory and published versions of all ranks, which outlive every group.
struct World {
  explicit World(SessionLayouts layouts) : job(std::move(layouts)) {
    for (int r = 0; r < job.ranks; ++r) memory.emplace_back(job, Rank(r));
    published.resize(memory.size());
  }
  bool has_target(Rank r) const { return memory[r.index()].target_side().buffers != nullptr; }

  SessionLayouts job;
  std::deque<SessionMemory> memory;
  std::deque<PublishedVersion> published;
};

struct Way {
  std::string name;
  Buffering buffering;
  RefitPath path;
  VerifyMode verify = VerifyMode::never;
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

SessionOptions options_of(const Way& way) {
  return in_small_messages(session_options(way.buffering, way.path, way.verify));
}

/// Prepares on a new group and refits these versions; the last one with what `sabotage` does.
/// Returns how many ranks had success with the last.
int run_versions(World& world, const Way& way, std::vector<std::int64_t> versions,
                 const std::function<void(RankEnds&, SessionOptions&)>& sabotage = nullptr) {
  std::atomic<int> succeeded{0};
  const auto ended = run_group_as_threads<InprocGroup>(world.job.ranks, [&](RankEnds& ends) {
    SessionMemory& memory = world.memory[ends.rank().index()];
    SessionOptions options = options_of(way);
    if (sabotage) sabotage(ends, options);
    auto session = memory.prepare(ends, options, &world.published[ends.rank().index()]);
    ASSERT_EQ(outcome(session), "");
    for (const std::int64_t version : versions) {
      memory.source_bytes.fill(memory.source, version);
      const auto report = session->refit(version);
      if (version != versions.back()) {
        ASSERT_EQ(outcome(report), "");
      }
      if (version == versions.back() && report) ++succeeded;
      if (!report) {
        EXPECT_NE(report.error().message.find("refit of version"), std::string::npos)
            << report.error().message;
        // The session says so again, and harms nothing.
        expect_error(session->refit(version + 1), Code::invalid_argument, {"was aborted"});
      }
    }
    if (succeeded == world.job.ranks) ends.control->quiesce(patient());
  });
  EXPECT_EQ(outcome(ended), "");
  return succeeded;
}

/// Expects every reader to find version `old` or `now` whole, or, with one copy, a torn target.
void expect_whole_or_torn(const World& world, Buffering buffering, std::int64_t old,
                          std::int64_t now, const std::string& what) {
  for (int r = 0; r < world.job.ranks; ++r) {
    if (!world.has_target(Rank(r))) continue;
    const TargetVersion found = world.published[static_cast<std::size_t>(r)].target_version();
    EXPECT_EQ(world.memory[static_cast<std::size_t>(r)].wrong(found), 0) << what << ", rank " << r;
    EXPECT_TRUE(found.version == old || found.version == now) << what << ", " << found.version;
    if (buffering == Buffering::doubled) {
      EXPECT_EQ(found.state, TargetState::whole) << what << ", rank " << r;
    }
  }
}

const Way kInPlaceDirect{"in_place_direct", Buffering::in_place, RefitPath::direct};
const Way kInPlaceMessages{"in_place_messages", Buffering::in_place, RefitPath::message};
const Way kInPlaceProved{"in_place_proved", Buffering::in_place, RefitPath::message,
                         VerifyMode::always};
const Way kDoubledDirect{"doubled_direct", Buffering::doubled, RefitPath::direct};
const Way kDoubledMessages{"doubled_messages", Buffering::doubled, RefitPath::message};
const Way kDoubledProved{"doubled_proved", Buffering::doubled, RefitPath::direct,
                         VerifyMode::always};

class SessionFaults : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, SessionFaults,
                         testing::Values(kInPlaceDirect, kInPlaceMessages, kInPlaceProved,
                                         kDoubledDirect, kDoubledMessages, kDoubledProved),
                         [](const auto& tested) { return tested.param.name; });
class SessionMessages : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, SessionMessages,
                         testing::Values(kInPlaceMessages, kInPlaceProved, kDoubledMessages),
                         [](const auto& tested) { return tested.param.name; });

constexpr SessionPhase kPhases[] = {SessionPhase::begin, SessionPhase::transfer,
                                    SessionPhase::check, SessionPhase::commit,
                                    SessionPhase::committed};

/// In the refit of version 3, rank `bad` does `harm` when it enters `phase`.
void fail_in_phase(const Way& way, SessionPhase phase, Rank bad,
                   const std::function<Result<>(RankEnds&)>& harm, const std::string& how) {
  World world(overlapping_job());
  const std::string what =
      how + " at " + std::string(name(phase)) + " on rank " + std::to_string(bad.value());
  const int succeeded =
      run_versions(world, way, {1, 2, 3}, [&](RankEnds& ends, SessionOptions& options) {
        if (ends.rank() != bad) return;
        options.on_phase = [&, refits = 0](SessionPhase now) mutable -> Result<> {
          refits += now == SessionPhase::begin ? 1 : 0;
          return refits == 3 && now == phase ? harm(ends) : Result<>();
        };
      });
  EXPECT_EQ(succeeded, 0) << what;
  expect_whole_or_torn(world, way.buffering, 2, 3, what);
  for (int r = 0; r < world.job.ranks; ++r) {
    if (!world.has_target(Rank(r))) continue;
    const TargetVersion found = world.published[static_cast<std::size_t>(r)].target_version();
    const bool before = phase == SessionPhase::begin;
    if (before || (way.buffering == Buffering::doubled && phase != SessionPhase::committed)) {
      EXPECT_EQ(found.state, TargetState::whole) << what;
      EXPECT_EQ(found.version, 2) << what;
    } else if (phase != SessionPhase::committed) {
      EXPECT_EQ(found.state, TargetState::torn) << what;
    } else {
      // Only a rank that saw the abort in the first barrier of the commit is torn, or old.
      EXPECT_TRUE(found.version == 3 || found.state != TargetState::whole ||
                  way.buffering == Buffering::doubled)
          << what;
    }
  }
  // A new group continues, whatever its ranks hold.
  EXPECT_EQ(run_versions(world, way, {4, 5}), world.job.ranks) << what;
  expect_whole_or_torn(world, Buffering::doubled, 5, 5, what);
}

TEST_P(SessionFaults, an_error_in_any_phase_leaves_whole_or_torn) {
  for (const SessionPhase phase : kPhases)
    for (const int bad : {0, 3, 5, 7})
      fail_in_phase(
          GetParam(), phase, Rank(bad), [](RankEnds&) { return fail(Code::io, "no more"); },
          "error");
}

TEST_P(SessionFaults, a_rank_that_leaves_in_any_phase_leaves_whole_or_torn) {
  for (const SessionPhase phase : kPhases)
    for (const int bad : {0, 3, 5, 7})
      fail_in_phase(
          GetParam(), phase, Rank(bad),
          [](RankEnds& ends) -> Result<> {
            ends.transport->close();
            ends.control->close();
            return {};
          },
          "death");
}

/// Message `message` of rank 0 or 3, counted from the first refit on, is lost, cut, or the rank's
/// last. Only verification detects a byte that changed in transit.
TEST_P(SessionMessages, that_fail_leave_whole_or_torn) {
  const Way& way = GetParam();
  for (const auto kind : {Fault::Kind::kill, Fault::Kind::truncate}) {
    for (const std::uint64_t message : {0UL, 3UL, 9UL, 27UL, 50UL, 81UL, 243UL}) {
      World world(overlapping_job());
      const std::string what = "message " + std::to_string(message);
      run_versions(world, way, {1}, [&](RankEnds& ends, SessionOptions&) {
        if (ends.rank() != Rank(message % 2 == 0 ? 0 : 3)) return;
        FaultPlan plan{{{kind, message, 1}}, 0};
        plan.on_kill = [&ends] { ends.control->close(); };
        ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
      });
      for (int r = 0; r < world.job.ranks; ++r) {
        const TargetVersion found = world.published[static_cast<std::size_t>(r)].target_version();
        EXPECT_EQ(world.memory[static_cast<std::size_t>(r)].wrong(found), 0) << what;
      }
      EXPECT_EQ(run_versions(world, way, {2}), world.job.ranks) << what;
      expect_whole_or_torn(world, Buffering::doubled, 2, 2, what);
    }
  }
}

/// Verification detects a changed bit, on every rank; the group stays usable.
TEST(SessionProof, finds_a_changed_bit_and_refits_again) {
  for (const Buffering buffering : {Buffering::in_place, Buffering::doubled}) {
    World world(overlapping_job());
    const auto ended = run_group_as_threads<InprocGroup>(world.job.ranks, [&](RankEnds& ends) {
      SessionMemory& memory = world.memory[ends.rank().index()];
      PublishedVersion& published = world.published[ends.rank().index()];
      SessionOptions options = options_of({"", buffering, RefitPath::message, VerifyMode::always});
      bool spoil = false;
      options.on_phase = [&](SessionPhase phase) -> Result<> {
        // After the bytes have arrived: as if the network had changed one.
        if (!spoil || phase != SessionPhase::check) return {};
        const bool back = buffering == Buffering::doubled && published.target_version().buffer == 0;
        const RankBuffers& now = back ? memory.back : memory.target;
        const SlotId slot = now.layout().slots_of(ends.rank()).front();
        now.at(ends.rank(), slot)[0] ^= std::byte{4};
        return {};
      };
      auto session = memory.prepare(ends, options, &published);
      ASSERT_EQ(outcome(session), "");
      memory.source_bytes.fill(memory.source, 1);
      ASSERT_EQ(outcome(session->refit(1)), "");
      memory.source_bytes.fill(memory.source, 2);
      spoil = ends.rank() == Rank(5);
      expect_error(session->refit(2), Code::corrupt, {"tensor '", "failed at check"});
      const bool doubled = buffering == Buffering::doubled;
      if (memory.target_side().buffers != nullptr) {
        EXPECT_EQ(published.target_version().state,
                  doubled ? TargetState::whole : TargetState::torn);
        EXPECT_EQ(published.target_version().version, 1);
      }
      EXPECT_EQ(memory.wrong(published.target_version()), 0);
      spoil = false;
      ASSERT_EQ(outcome(session->refit(2)), "");
      EXPECT_EQ(memory.wrong(published.target_version()), 0);
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
}

/// verify() detects a change after the commit.
TEST(SessionProof, finds_a_bit_that_changed_later) {
  for (const VerifyMode when : {VerifyMode::always, VerifyMode::never}) {
    World world(overlapping_job());
    const auto ended = run_group_as_threads<InprocGroup>(world.job.ranks, [&](RankEnds& ends) {
      SessionMemory& memory = world.memory[ends.rank().index()];
      auto session = Session::prepare(
          *ends.transport, *ends.control, memory.source_side(), memory.target_side(),
          options_of({"", Buffering::in_place, RefitPath::automatic, when}));
      ASSERT_EQ(outcome(session), "");
      memory.source_bytes.fill(memory.source, 1);
      ASSERT_EQ(outcome(session->refit(1)), "");
      EXPECT_EQ(outcome(session->verify()), "");
      // New weights of the trainer do not affect what was committed and recorded.
      memory.source_bytes.fill(memory.source, 2);
      if (when == VerifyMode::always) {
        EXPECT_EQ(outcome(session->verify()), "");
      } else {
        expect_error(session->verify(), Code::corrupt, {"tensor '"});
      }
      memory.source_bytes.fill(memory.source, 1);
      if (ends.rank() == Rank(4)) {
        const SlotId slot = memory.target.layout().slots_of(ends.rank()).front();
        memory.target.at(ends.rank(), slot)[1] ^= std::byte{1};
      }
      expect_error(session->verify(), Code::corrupt, {"tensor '"});
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
}

}  // namespace
}  // namespace reshard
