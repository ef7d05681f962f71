// SPDX-License-Identifier: Apache-2.0
// Law: who may join, who refits from whom, and when a group is used again.
#include "reshard/fleet/fleet_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace reshard::fleet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Limits kLimits{.gather = Time(10), .round = Time(20), .report = Time(5)};

/// A fleet whose members do at once what they are told; what they are told last is kept.
class Fleet {
 public:
  MemberId join(const std::string& unit, Role role, int rank = 0, int size = 1,
                const std::string& layout = "hf") {
    const MemberId member(next_++);
    take(state_.join(member, {unit, role, rank, size, layout}, now_));
    return member;
  }
  void ready(MemberId member) { take(state_.ready(member, now_)); }
  void publish(MemberId member, std::int64_t version, int engines = 0) {
    take(state_.publish(member, version, engines, now_));
  }
  void lose(MemberId member) { take(state_.lose(member, now_)); }
  void tick() {
    now_ = *state_.next_time();
    take(state_.tick(now_));
  }
  /// The member's part of its last order is over.
  void report(MemberId member, bool has, const std::string& error = "") {
    take(state_.report(member, told_[member].round, has, kNoVersion, error, now_));
  }
  const Action& told(MemberId member) { return told_[member]; }
  bool was_told(MemberId member) const { return told_.contains(member); }
  std::vector<std::string> units(MemberId member) {
    std::vector<std::string> out;
    for (const Participant& p : told_[member].participants) out.push_back(p.unit);
    return out;
  }
  FleetState& state() { return state_; }

 private:
  void take(const std::vector<Action>& actions) {
    for (const Action& a : actions) told_[a.to] = a;
  }
  FleetState state_{kLimits};
  std::int64_t next_ = 1;
  Time now_{0};
  std::map<MemberId, Action> told_;
};

TEST(FleetState, who_cannot_be_a_member_is_told_why) {
  Fleet fleet;
  fleet.join("t", Role::trainer);
  fleet.join("a", Role::engine, 0, 2, "vllm:tp=2");
  const auto why = [&](const std::string& unit, Role role, int rank, int size,
                       const std::string& layout) {
    const Action& answer = fleet.told(fleet.join(unit, role, rank, size, layout));
    EXPECT_EQ(answer.kind, Action::Kind::refuse);
    return answer.text;
  };
  EXPECT_THAT(why("", Role::engine, 0, 1, "hf"), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(why("a/b", Role::engine, 0, 1, "hf"), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(why("b", Role::engine, 0, 0, "hf"), HasSubstr("a unit of 0 ranks"));
  EXPECT_THAT(why("b", Role::engine, 2, 2, "hf"), HasSubstr("rank 2 in a unit of 2"));
  EXPECT_THAT(why("u", Role::trainer, 0, 1, "hf"), HasSubstr("has a trainer, 't'"));
  EXPECT_THAT(why("a", Role::trainer, 1, 2, "vllm:tp=2"), HasSubstr("'t'"));
  EXPECT_THAT(why("a", Role::engine, 1, 3, "vllm:tp=2"), HasSubstr("has 2 ranks, this process"));
  EXPECT_THAT(why("a", Role::engine, 1, 2, "vllm:tp=1"), HasSubstr("another layout"));
  EXPECT_THAT(why("a", Role::engine, 0, 2, "vllm:tp=2"), HasSubstr("rank 0 of unit 'a' is taken"));
}

TEST(FleetState, a_round_of_the_same_members_after_one_that_succeeded_keeps_its_epoch) {
  Fleet fleet;
  const MemberId t = fleet.join("t", Role::trainer), a = fleet.join("a", Role::engine);
  for (const std::int64_t version : {1, 2}) {
    fleet.ready(a);
    fleet.publish(t, version);
    EXPECT_EQ(fleet.told(a).epoch, 1);
    EXPECT_EQ(fleet.told(a).round, version);
    fleet.report(a, true);
    fleet.report(t, true);
    EXPECT_EQ(fleet.told(a).kind, Action::Kind::confirm);
    EXPECT_THAT(fleet.told(t).holders, ElementsAre("a"));
  }
  fleet.ready(a);
  fleet.publish(t, 3);
  fleet.report(a, false, "it is full");
  EXPECT_EQ(fleet.told(t).kind, Action::Kind::cancel);
  fleet.report(t, false);
  EXPECT_EQ(fleet.told(t).kind, Action::Kind::order);  // Again.
  EXPECT_EQ(fleet.told(t).epoch, 2);
}

TEST(FleetState, a_trainer_waits_for_engines_that_are_not_ready_until_its_time) {
  Fleet fleet;
  const MemberId t = fleet.join("t", Role::trainer), a = fleet.join("a", Role::engine),
                 b = fleet.join("b", Role::engine);
  fleet.ready(a);
  fleet.publish(t, 1);
  EXPECT_FALSE(fleet.was_told(t));
  fleet.tick();
  EXPECT_THAT(fleet.units(t), ElementsAre("t", "a"));
  fleet.report(t, true);
  fleet.report(a, true);
  EXPECT_EQ(fleet.told(t).kind, Action::Kind::release);
  EXPECT_EQ(fleet.told(t).text,
            "engines 'b' have not got version 1: they were not ready before the deadline");
  // It catches up from its peer.
  fleet.ready(a);
  fleet.ready(b);
  EXPECT_THAT(fleet.units(b), ElementsAre("a", "b"));
}

TEST(FleetState, a_trainer_waits_for_so_many_engines) {
  Fleet fleet;
  const MemberId t = fleet.join("t", Role::trainer), a = fleet.join("a", Role::engine);
  fleet.ready(a);
  fleet.publish(t, 1, 2);
  EXPECT_FALSE(fleet.was_told(t));
  const MemberId b = fleet.join("b", Role::engine);
  EXPECT_FALSE(fleet.was_told(t));
  fleet.ready(b);
  EXPECT_THAT(fleet.units(t), ElementsAre("t", "a", "b"));
}

TEST(FleetState, an_engine_that_cannot_take_a_version_is_tried_twice_and_said_to_the_trainer) {
  Fleet fleet;
  const MemberId t = fleet.join("t", Role::trainer), a = fleet.join("a", Role::engine);
  fleet.ready(a);
  fleet.publish(t, 1);
  for (int i = 0; i < kMaxTries; ++i) {
    EXPECT_EQ(fleet.told(t).kind, Action::Kind::order);
    fleet.report(a, false, "it is full");
    fleet.report(t, false);
  }
  EXPECT_EQ(fleet.told(t).kind, Action::Kind::release);
  EXPECT_EQ(fleet.told(t).text, "engines 'a' have not got version 1: it is full");
  EXPECT_THAT(fleet.told(t).holders, IsEmpty());
}

// A rank that dies after it has the version, but before its engine has it, fails a round in which
// nobody seems to be lost.
TEST(FleetState, deaths_that_are_noticed_late_cost_others_no_tries) {
  Fleet fleet;
  const MemberId t = fleet.join("t", Role::trainer), b = fleet.join("b", Role::engine);
  std::vector<MemberId> all{t, b}, dying;
  for (const std::string unit : {"a", "c"})
    for (const int rank : {0, 1}) {
      all.push_back(fleet.join(unit, Role::engine, rank, 2));
      if (rank == 0) dying.push_back(all.back());
    }
  for (const MemberId member : all)
    if (member != t) fleet.ready(member);
  fleet.publish(t, 1);
  for (const MemberId dead : dying) {
    fleet.report(dead, true);
    for (const MemberId member : all)
      if (member != dead) fleet.report(member, false, "another rank died");
    EXPECT_EQ(fleet.told(b).kind, Action::Kind::order);
    std::erase(all, dead);
    fleet.lose(dead);
    for (const MemberId member : all) fleet.report(member, false, "another rank died");
  }
  EXPECT_EQ(fleet.told(b).kind, Action::Kind::order);
  EXPECT_THAT(fleet.units(b), ElementsAre("t", "b"));
}

TEST(FleetState, ranks_of_a_trainer_that_publish_different_versions_are_rejected) {
  Fleet fleet;
  const MemberId t0 = fleet.join("t", Role::trainer, 0, 2),
                 t1 = fleet.join("t", Role::trainer, 1, 2);
  fleet.publish(t0, 1);
  fleet.publish(t1, 2);
  EXPECT_EQ(fleet.told(t0).kind, Action::Kind::reject);
  EXPECT_EQ(fleet.told(t1).kind, Action::Kind::reject);
  EXPECT_THAT(fleet.told(t1).text, HasSubstr("publish versions 1 and 2"));
  EXPECT_EQ(fleet.told(t1).code, Code::invalid_argument);
}

TEST(FleetState, a_trainer_without_all_of_its_ranks_is_rejected_in_time) {
  Fleet fleet;
  const MemberId t0 = fleet.join("t", Role::trainer, 0, 2);
  fleet.publish(t0, 1);
  fleet.tick();
  EXPECT_EQ(fleet.told(t0).kind, Action::Kind::reject);
  EXPECT_THAT(fleet.told(t0).text, HasSubstr("not all ranks of the trainer have published"));
  EXPECT_EQ(fleet.told(t0).code, Code::deadline);
}

TEST(FleetState, who_does_not_report_in_time_is_dropped) {
  Fleet fleet;
  const MemberId t = fleet.join("t", Role::trainer), a = fleet.join("a", Role::engine),
                 b = fleet.join("b", Role::engine);
  fleet.ready(a);
  fleet.ready(b);
  fleet.publish(t, 1);
  fleet.report(a, false, "deadline");
  fleet.report(t, false, "deadline");
  fleet.tick();
  EXPECT_EQ(fleet.told(b).kind, Action::Kind::drop);
  EXPECT_THAT(fleet.units(t), ElementsAre("t", "a"));
}

TEST(FleetState, what_a_member_says_out_of_turn_counts_for_nothing) {
  Fleet fleet;
  const MemberId t = fleet.join("t", Role::trainer), a = fleet.join("a", Role::engine),
                 b = fleet.join("b", Role::engine);
  fleet.ready(a);
  fleet.ready(t);         // A trainer is never ready.
  fleet.publish(a, 7);    // An engine publishes nothing.
  fleet.report(a, true);  // There is no round.
  fleet.publish(t, 1);
  fleet.tick();
  EXPECT_THAT(fleet.units(t), ElementsAre("t", "a"));
  fleet.report(b, true);  // It is not in the round.
  fleet.report(t, true);
  fleet.report(t, true);  // It has reported.
  EXPECT_EQ(fleet.told(a).kind, Action::Kind::order);
  const std::string before = fleet.state().text();
  EXPECT_THAT(fleet.state().report(a, 99, true, kNoVersion, "", Time(0)), IsEmpty());
  EXPECT_EQ(fleet.state().text(), before);
}

TEST(FleetState, units_without_members_are_forgotten) {
  Fleet fleet;
  const std::string before = fleet.state().text();
  for (int i = 0; i < 100; ++i) fleet.lose(fleet.join("e" + std::to_string(i), Role::engine));
  EXPECT_EQ(fleet.state().text(), before);
}

}  // namespace
}  // namespace reshard::fleet
