// SPDX-License-Identifier: Apache-2.0
// Law: members of a served fleet do what FleetState decides, in groups that they make of
// themselves.
#include "reshard/fleet/fleet_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <thread>

#include "reshard/fleet/fleet_member.h"
#include "reshard/transport/listening_socket.h"

namespace reshard::fleet {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

Deadline soon() { return Deadline::after(20s); }

class FleetServed : public testing::Test {
 protected:
  explicit FleetServed(Limits limits = {}) {
    address_ = {"tcp://127.0.0.1:0", "test", *Secret::from_text("a secret of the test")};
    server_ = *FleetServer::serve(address_, limits);
    address_.url = server_->url();
  }
  Result<std::unique_ptr<FleetMember>> try_join(JoinRequest request) {
    return FleetMember::join(address_, std::move(request), soon());
  }
  std::unique_ptr<FleetMember> join(const std::string& unit, Role role, int rank = 0,
                                    int size = 1) {
    return *try_join({unit, role, rank, size, "hf"});
  }

  /// Takes part in rounds, with a barrier in place of a refit, until there is another action. What
  /// a round fails with is in `error`.
  static Action follow(FleetMember& member, std::string* error = nullptr) {
    for (;;) {
      const auto action = *member.next(soon());
      if (!action) return {};
      if (action->kind != Action::Kind::order) return *action;
      TransportOptions options;
      options.deadline = soon();
      auto group = member.make_group(*action, "shm", options);
      Result<> met;
      if (group) met = group->control->barrier(soon());
      if (error != nullptr && !group) *error = group.error().message;
      const bool has = group && met;
      EXPECT_TRUE(member.report(action->round, has, kNoVersion, has ? "" : "failed"));
    }
  }
  static std::future<Action> follow_in_a_thread(FleetMember& member, std::string* error = nullptr) {
    return std::async(std::launch::async, [&member, error] { return follow(member, error); });
  }

  ControlAddress address_;
  std::unique_ptr<FleetServer> server_;
};

TEST_F(FleetServed, a_version_reaches_the_engines_that_are_there) {
  const auto trainer = join("t", Role::trainer);
  const auto a = join("a", Role::engine, 0, 2), b = join("a", Role::engine, 1, 2);
  for (const std::int64_t version : {1, 2}) {
    ASSERT_TRUE(a->ready());
    ASSERT_TRUE(b->ready());
    ASSERT_TRUE(trainer->publish(version, 1));
    auto of_a = follow_in_a_thread(*a), of_b = follow_in_a_thread(*b);
    const Action released = follow(*trainer);
    EXPECT_EQ(released.kind, Action::Kind::release);
    EXPECT_THAT(released.holders, ElementsAre("a"));
    for (const Action& told : {of_a.get(), of_b.get()}) {
      EXPECT_EQ(told.kind, Action::Kind::confirm);
      EXPECT_EQ(told.version, version);
    }
  }
  EXPECT_THAT(server_->text(), HasSubstr("engine 'a'"));
}

TEST_F(FleetServed, who_waits_for_a_process_that_has_died_to_join_the_group_is_told) {
  const auto trainer = join("t", Role::trainer);
  auto a = join("a", Role::engine);
  const auto b = join("b", Role::engine);
  ASSERT_TRUE(a->ready());
  ASSERT_TRUE(b->ready());
  ASSERT_TRUE(trainer->publish(1, 2));
  EXPECT_EQ((*a->next(soon()))->kind, Action::Kind::order);
  std::string error;
  auto of_trainer = follow_in_a_thread(*trainer, &error);
  auto of_b = follow_in_a_thread(*b);
  a.reset();  // Dead.
  EXPECT_EQ(of_b.get().kind, Action::Kind::confirm);
  const Action released = of_trainer.get();
  EXPECT_THAT(released.holders, ElementsAre("b"));
  EXPECT_THAT(error, HasSubstr("was lost or has failed"));
}

// Rank 0 listens all the time, so that others' connections reach it while it does not join. Here a
// socket that nobody accepts from is in its place.
TEST_F(FleetServed, who_waits_for_rank_0_is_told_that_the_round_is_over) {
  const auto trainer = join("t", Role::trainer), a = join("a", Role::engine);
  ASSERT_TRUE(a->ready());
  ASSERT_TRUE(trainer->publish(1, 1));
  Action order = **a->next(soon());
  const ListeningSocket silent = *ListeningSocket::make();
  order.address = "127.0.0.1:" + std::to_string(silent.port());
  TransportOptions options;
  options.deadline = soon();
  auto joining = std::async(std::launch::async,
                            [&] { return a->make_group(order, "shm", options).error().message; });
  pollfd polled{silent.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 20'000), 1);
  const Action mine = **trainer->next(soon());
  ASSERT_TRUE(trainer->report(mine.round, false, kNoVersion, "it fails before it joins"));
  EXPECT_THAT(joining.get(), HasSubstr("was lost or has failed"));
  // In time: it is not dropped, as it would be if it waited for the handshake's own limit.
  ASSERT_TRUE(a->report(order.round, false, kNoVersion, "cancelled"));
  const auto next = a->next(soon());
  ASSERT_TRUE(next);
  EXPECT_EQ((*next)->round, order.round + 1);
}

TEST_F(FleetServed, who_cannot_join_is_told_why) {
  const auto trainer = join("t", Role::trainer);
  EXPECT_THAT(try_join({"u", Role::trainer, 0, 1, "hf"}).error().message,
              HasSubstr("the fleet has a trainer, 't'"));
  EXPECT_FALSE(FleetServer::serve({"tcp://127.0.0.1:0", std::string(33, 'j'), address_.secret}));
}

TEST_F(FleetServed, a_process_that_breaks_the_protocol_is_disconnected) {
  const auto trainer = join("t", Role::trainer);
  const auto stranger = *ControlConnection::connect(address_, soon());
  const std::array<std::byte, 3> bytes{};
  ASSERT_TRUE(stranger->send(bytes, soon()));
  EXPECT_FALSE(stranger->receive(soon()));
  ASSERT_TRUE(trainer->publish(1, 0));
  EXPECT_EQ(follow(*trainer).kind, Action::Kind::release);
}

TEST_F(FleetServed, a_wait_ends_when_it_is_cancelled_and_when_the_server_does) {
  const auto a = join("a", Role::engine), b = join("b", Role::engine);
  a->cancel();
  EXPECT_THAT(a->next(soon()).error().message, HasSubstr("interrupted"));
  server_.reset();
  EXPECT_THAT(b->next(soon()).error().message, HasSubstr("has ended"));
}

class FleetServedShortly : public FleetServed {
 protected:
  FleetServedShortly() : FleetServed({.gather = 0s, .round = 10s, .report = 0s}) {}
};

TEST_F(FleetServedShortly, a_member_that_does_not_report_is_dropped) {
  const auto trainer = join("t", Role::trainer), a = join("a", Role::engine);
  ASSERT_TRUE(a->ready());
  ASSERT_TRUE(trainer->publish(1, 1));
  const Action order = **trainer->next(soon());
  ASSERT_TRUE(trainer->report(order.round, false, kNoVersion, "deadline"));
  EXPECT_EQ((*a->next(soon()))->kind, Action::Kind::order);
  EXPECT_THAT(a->next(soon()).error().message, HasSubstr("dropped this process"));
  EXPECT_EQ(follow(*trainer).kind, Action::Kind::release);
}

}  // namespace
}  // namespace reshard::fleet
