// SPDX-License-Identifier: Apache-2.0
// Faults of sessions with quantised targets, as a suite that a transport's test program includes
// once and instantiates: RESHARD_TEST_QUANTISED_FAULTS(Name, under_test). Ranks may be threads or
// processes.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reshard/refit/session/quantised_memory_testutil.h"
#include "reshard/transport/testing/fault_testutil.h"

namespace reshard::quantised {

class QuantisedFaults : public testing::TestWithParam<std::tuple<TransportUnderTest, Way>> {
 protected:
  static const Way& way() { return std::get<1>(GetParam()); }
  static Result<> run(int ranks, const RankBody& body) {
    return std::get<0>(GetParam()).run(ranks, body);
  }

  using Disturbance = std::function<void(RankEnds&, SessionOptions&, bool& armed)>;
  /// Versions 1 and 2; the second is disturbed on rank `bad`. Then every whole target is what the
  /// oracle says of its version.
  static void disturb(Rank bad, const Disturbance& disturbance) {
    static const auto jobs = [] {
      std::vector<std::unique_ptr<Job>> out;
      for (std::int64_t version : {1, 2}) {
        out.push_back(std::make_unique<Job>(small_case()));
        out.back()->fill(version);
      }
      return out;
    }();
    EXPECT_EQ(outcome(run(small_case().ranks,
                          [&](RankEnds& ends) {
                            disturbed_rank(*jobs[0], *jobs[1], ends, bad, disturbance);
                          })),
              "");
  }

 private:
  static void disturbed_rank(const Job& first, const Job& second, RankEnds& ends, Rank bad,
                             const Disturbance& disturbance) {
    const Rank me = ends.rank();
    const Memory memory(first, me);
    PublishedVersion published;
    SessionOptions options = options_of(way());
    bool armed = false;
    if (me == bad) disturbance(ends, options, armed);
    auto session = Session::prepare(*ends.transport, *ends.control, memory.source(first),
                                    memory.target(first, published), options);
    ASSERT_EQ(outcome(session), "");
    copy_to(*first.source.stored, memory.from, me);
    const auto one = session->refit(1);
    copy_to(*second.source.stored, memory.from, me);
    armed = true;
    if (one) {
      EXPECT_FALSE(session->refit(2));
    }
    if (!memory.has_target()) return;
    const TargetVersion found = published.target_version();
    // A message of the first refit may have been the one that failed.
    EXPECT_TRUE(one ? may_be_seen(found, way().buffering, 1, 2) : found.version < 2)
        << name(found.state) << " " << found.version;
    EXPECT_EQ(memory.wrong(found, found.version == 1 ? first : second), 0)
        << "rank " << me.value() << ", version " << found.version;
  }
};

TEST_P(QuantisedFaults, in_any_phase_leave_whole_or_torn) {
  for (const SessionPhase phase : {SessionPhase::begin, SessionPhase::transfer, SessionPhase::check,
                                   SessionPhase::commit, SessionPhase::committed})
    for (const int bad : {0, 5})
      disturb(Rank(bad), [&](RankEnds&, SessionOptions& options, bool& armed) {
        options.on_phase = [&armed, phase](SessionPhase now) -> Result<> {
          if (armed && now == phase) return fail(Code::io, "no more");
          return {};
        };
      });
}

TEST_P(QuantisedFaults, between_messages_leave_whole_or_torn) {
  if (way().path != RefitPath::message) return;  // On the other path there are none.
  for (const std::uint64_t message : {0UL, 5UL, 30UL, 90UL, 150UL, 200UL})
    disturb(Rank(0), [&](RankEnds& ends, SessionOptions& options, bool& armed) {
      options.on_phase = [&armed](SessionPhase now) -> Result<> {
        if (armed && now == SessionPhase::check) return fail(Code::io, "at the latest now");
        return {};
      };
      FaultPlan plan{{{Fault::Kind::truncate, message, 1}}, 0};
      ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
    });
}

/// Received values are verified before they are quantised; committed bytes, afterwards.
TEST_P(QuantisedFaults, a_changed_byte_is_found) {
  const Case c = small_case();
  Job job(c);
  job.fill(1);
  const auto ended = run(c.ranks, [&](RankEnds& ends) {
    const Rank me = ends.rank();
    const Memory memory(job, me);
    PublishedVersion published;
    auto session = Session::prepare(*ends.transport, *ends.control, memory.source(job),
                                    memory.target(job, published), options_of(way()));
    ASSERT_EQ(outcome(session), "");
    copy_to(*job.source.stored, memory.from, me);
    ASSERT_EQ(outcome(session->refit(1)), "");
    EXPECT_EQ(outcome(session->verify()), "");
    for (const bool scales : {false, true}) {
      const QuantisedLayout& layout = *job.target.quantised;
      const auto& pair = layout.pairs.back();
      const RankBuffers& now = published.target_version().buffer == 0 ? memory.to : memory.back;
      const SlotId slot = scales ? pair.scales : pair.data;
      const bool has = !now.ranks().empty() && now.at(me, slot) != nullptr && me == Rank(6);
      if (has) now.at(me, slot)[1] ^= std::byte{8};
      expect_error(session->verify(), Code::corrupt,
                   {"rank 6", "local tensor '" + layout.stored->slot(slot).name + "'"});
      if (has) now.at(me, slot)[1] ^= std::byte{8};
      EXPECT_EQ(outcome(session->verify()), "");
    }
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

inline std::string fault_name(const testing::TestParamInfo<QuantisedFaults::ParamType>& info) {
  return std::get<1>(info.param).name;
}

#define RESHARD_TEST_QUANTISED_FAULTS(Name, under_test) \
  INSTANTIATE_TEST_SUITE_P(                             \
      Name, QuantisedFaults,                            \
      testing::Combine(testing::Values(under_test), testing::ValuesIn(fault_ways())), fault_name)

}  // namespace reshard::quantised
