// SPDX-License-Identifier: Apache-2.0
// Protects: what fails while quantised weights are refitted leaves whole versions or torn ones, a
// changed byte of them is found, and refits in a row allocate nothing of their own.
#include <gtest/gtest.h>

#include <atomic>

#include "reshard/refit/allocation_count_testutil.h"
#include "reshard/refit/quantised_suite_testutil.h"
#include "reshard/refit/routes.h"
#include "reshard/transport/fault.h"
#include "reshard/transport/inproc.h"

namespace reshard::quantised {
namespace {

Case small_case() {
  for (const Case& c : cases())
    if (c.name == "mxfp8_cut") return c;
  return {};
}

/// One rank's memory of a job.
struct Memory {
  RankBuffers from, to, back;
  Memory(const Job& job, Rank me)
      : from(mine(*job.source.stored, me)),
        to(mine(*job.target.stored, me)),
        back(mine(*job.target.stored, me)) {}
  SessionSide source(const Job& job) const {
    SessionSide side = job.source.side();
    if (!from.ranks().empty()) side.buffers = &from;
    return side;
  }
  SessionSide target(const Job& job, VersionWord& word) const {
    SessionSide side = job.target.side();
    side.word = &word;
    if (to.ranks().empty()) return side;
    side.buffers = &to;
    side.back = &back;
    return side;
  }
};

/// Versions 1 and 2; the second is disturbed on rank `bad`. Then every whole target is what the
/// oracle says of its version.
void disturb(const Way& way, Rank bad,
             const std::function<void(RankEnds&, SessionOptions&, bool&)>& disturbance) {
  const Case c = small_case();
  Job first(c), second(c);
  first.fill(1);
  second.fill(2);
  const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&](RankEnds& ends) {
    const Rank me = ends.rank();
    const Memory memory(first, me);
    VersionWord word;
    SessionOptions options = options_of(way);
    bool armed = false;
    if (me == bad) disturbance(ends, options, armed);
    auto session = Session::prepare(*ends.transport, *ends.control, memory.source(first),
                                    memory.target(first, word), options);
    ASSERT_EQ(outcome(session), "");
    copy_to(*first.source.stored, memory.from, me);
    const auto one = session->refit(1);
    copy_to(*second.source.stored, memory.from, me);
    armed = true;
    if (one) {
      EXPECT_FALSE(session->refit(2));
    }
    const Held held = word.held();
    if (memory.to.ranks().empty()) return;
    EXPECT_TRUE(way.buffering == Buffering::in_place || held.state == TargetState::whole ||
                (!one && held.state == TargetState::empty));
    if (held.state != TargetState::whole) return;
    const RankBuffers& now = held.buffer == 0 ? memory.to : memory.back;
    const Job& is = held.version == 1 ? first : second;
    // Jobs have layouts of their own, and equal ones.
    Index different = 0;
    for (const SlotId slot : now.layout().slots_of(me))
      different += std::memcmp(now.at(me, slot), is.target.stored->at(me, slot),
                               static_cast<std::size_t>(now.bytes(me, slot))) != 0;
    EXPECT_EQ(different, 0) << "rank " << me.value() << ", version " << held.version;
  });
  EXPECT_EQ(outcome(ended), "");
}

class QuantisedFaults : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, QuantisedFaults, testing::ValuesIn(ways()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(QuantisedFaults, in_any_phase_leave_whole_or_torn) {
  for (const SessionPhase phase : {SessionPhase::begin, SessionPhase::transfer, SessionPhase::check,
                                   SessionPhase::commit, SessionPhase::committed})
    for (const int bad : {0, 5})
      disturb(GetParam(), Rank(bad), [&](RankEnds&, SessionOptions& options, bool& armed) {
        options.on_phase = [&armed, phase](SessionPhase now) -> Result<> {
          if (armed && now == phase) return fail(Code::io, "no more");
          return {};
        };
      });
}

TEST_P(QuantisedFaults, between_messages_leave_whole_or_torn) {
  if (GetParam().path != RefitPath::message) return;  // On the other path there are none.
  for (const std::uint64_t message : {0UL, 5UL, 30UL, 90UL, 150UL, 200UL})
    disturb(GetParam(), Rank(0), [&](RankEnds& ends, SessionOptions& options, bool& armed) {
      options.on_phase = [&armed](SessionPhase now) -> Result<> {
        if (armed && now == SessionPhase::check) return fail(Code::io, "at the latest now");
        return {};
      };
      FaultPlan plan{{{Fault::Kind::truncate, message, 1}}, 0};
      ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
    });
}

/// What lands is proved before it is quantised; what was committed, after.
TEST_P(QuantisedFaults, a_changed_byte_is_found) {
  const Case c = small_case();
  Job job(c);
  job.fill(1);
  const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&](RankEnds& ends) {
    const Rank me = ends.rank();
    const Memory memory(job, me);
    VersionWord word;
    auto session = Session::prepare(*ends.transport, *ends.control, memory.source(job),
                                    memory.target(job, word), options_of(GetParam()));
    ASSERT_EQ(outcome(session), "");
    copy_to(*job.source.stored, memory.from, me);
    ASSERT_EQ(outcome(session->refit(1)), "");
    EXPECT_EQ(outcome(session->prove()), "");
    for (const bool scales : {false, true}) {
      const QuantisedLayout& layout = *job.target.quantised;
      const auto& pair = layout.pairs.back();
      const RankBuffers& now = word.held().buffer == 0 ? memory.to : memory.back;
      const SlotId slot = scales ? pair.scales : pair.data;
      const bool has = !now.ranks().empty() && now.at(me, slot) != nullptr && me == Rank(6);
      if (has) now.at(me, slot)[1] ^= std::byte{8};
      expect_error(session->prove(), Code::corrupt,
                   {"rank 6", "local tensor '" + layout.stored->slot(slot).name + "'"});
      if (has) now.at(me, slot)[1] ^= std::byte{8};
      EXPECT_EQ(outcome(session->prove()), "");
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(QuantisedSteady, allocates_as_much_in_the_last_refit_as_in_the_second) {
  const Case c = small_case();
  for (Way way : ways()) {
    if (way.path != RefitPath::direct) continue;
    way.threads = 1;
    Job job(c);
    job.fill(1);
    std::atomic<std::int64_t> early{0}, late{0};
    const auto ended = run_group_as_threads<InprocGroup>(c.ranks, [&](RankEnds& ends) {
      const Memory memory(job, ends.rank());
      VersionWord word;
      SessionOptions options = options_of(way);
      options.prove = ProveWhen::never;
      auto session = Session::prepare(*ends.transport, *ends.control, memory.source(job),
                                      memory.target(job, word), options);
      ASSERT_EQ(outcome(session), "");
      copy_to(*job.source.stored, memory.from, ends.rank());
      for (int version = 0; version < 300; ++version) {
        ASSERT_TRUE(ends.control->barrier(patient()));
        const CountAllocations counted;
        ASSERT_TRUE(ends.control->barrier(patient()));
        ASSERT_EQ(outcome(session->refit(version)), "");
        ASSERT_TRUE(ends.control->barrier(patient()));
        const std::int64_t count = counted.everywhere();
        ASSERT_TRUE(ends.control->barrier(patient()));
        if (ends.rank() == Rank(0) && version == 1) early = count;
        if (ends.rank() == Rank(0) && version == 299) late = count;
      }
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
    EXPECT_EQ(late, early);
    // Those of the control plane's calls: a few for each rank, none for each of 47 tensors.
    EXPECT_LE(late, 16 * c.ranks) << way.name;
  }
}

}  // namespace
}  // namespace reshard::quantised
