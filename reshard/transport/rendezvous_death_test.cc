// SPDX-License-Identifier: Apache-2.0
// Protects: when a process is killed, all others learn which one, wherever they wait, and continue
// without it.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard {
namespace {

using Call = std::function<Result<>(ControlPlane&)>;

Result<> barrier(ControlPlane& me) { return me.barrier(Deadline::never()); }
Result<> all_gather(ControlPlane& me) {
  auto all = me.all_gather(std::as_bytes(std::span("some bytes")), Deadline::never());
  if (!all) return tl::unexpected(std::move(all).error());
  return {};
}
Result<> quiesce(ControlPlane& me) { return me.quiesce(Deadline::never()); }
Result<> nothing_but_look(ControlPlane& me) {
  while (me.status()) std::this_thread::yield();
  return me.status();
}

/// Rank `victim` of 4 is killed before or while the three others make a call.
void kill_while_others_call(int victim, const Call& call,
                            const std::function<void(ControlPlane&, const Result<>&)>& check) {
  ProcessEvent calling;
  ProcessOptions options;
  options.doomed = {victim};
  EXPECT_EQ(outcome(run_control_processes(
                4,
                [&](ControlPlane& me) {
                  if (me.rank() == Rank{victim}) {
                    calling.wait(3);
                    ::raise(SIGKILL);
                  }
                  calling.happen();
                  check(me, call(me));
                },
                options)),
            "");
}

/// Other ranks may have left regularly by now.
void expect_lost(const ControlPlane& me, int rank) {
  const std::vector<Rank> lost = me.lost();
  EXPECT_TRUE(std::ranges::is_sorted(lost));
  EXPECT_TRUE(std::ranges::binary_search(lost, Rank{rank})) << "rank " << rank;
}

void expect_death_of(ControlPlane& me, const Result<>& result, int victim) {
  const std::string name = "rank " + std::to_string(victim) + " died";
  expect_error(result, Code::aborted, {name});
  expect_error(me.status(), Code::aborted, {name});
  expect_error(me.barrier(patient()), Code::aborted, {name});
  expect_lost(me, victim);
}

TEST(RendezvousDeath, a_killed_rank_ends_every_wait_of_the_others_and_is_named) {
  for (const Call& call : {Call(barrier), Call(all_gather), Call(nothing_but_look)}) {
    kill_while_others_call(2, call, [](ControlPlane& me, const Result<>& result) {
      expect_death_of(me, result, 2);
      // quiesce() still works among the survivors.
      EXPECT_EQ(outcome(me.quiesce(patient())), "");
    });
  }
}

TEST(RendezvousDeath, quiesce_does_not_wait_for_the_dead) {
  kill_while_others_call(3, quiesce, [](ControlPlane& me, const Result<>& result) {
    EXPECT_EQ(outcome(result), "");
    expect_death_of(me, me.status(), 3);
  });
}

TEST(RendezvousDeath, the_death_of_the_process_that_serves_the_group_is_known_to_all) {
  for (const Call& call : {Call(barrier), Call(all_gather), Call(nothing_but_look)}) {
    kill_while_others_call(0, call, [](ControlPlane& me, const Result<>& result) {
      expect_death_of(me, result, 0);
      // Without rank 0 nobody knows what the other survivors do, and quiesce() reports that.
      const std::string other = me.rank() == Rank{1} ? "ranks 2, 3" : "rank";
      expect_error(me.quiesce(patient()), Code::aborted, {"rank 0", other, "may still use"});
    });
  }
}

TEST(RendezvousDeath, several_deaths_are_all_known) {
  ProcessEvent here;
  EXPECT_EQ(outcome(run_control_processes(5,
                                          [&](ControlPlane& me) {
                                            if (me.rank() == Rank{1} || me.rank() == Rank{3}) {
                                              here.wait(2);
                                              ::raise(SIGKILL);
                                            }
                                            for (int i = 0; i < 2; ++i) here.happen();
                                            expect_error(me.barrier(Deadline::never()),
                                                         Code::aborted, {"died"});
                                            // Ends when both are known to be dead: until then one
                                            // of them is waited for.
                                            EXPECT_EQ(outcome(me.quiesce(patient())), "");
                                            expect_lost(me, 1);
                                            expect_lost(me, 3);
                                          },
                                          {.doomed = {1, 3}})),
            "");
}

TEST(RendezvousDeath, the_survivors_make_a_new_group) {
  const RendezvousFolder folder;
  ProcessEvent calling;
  const auto join_as = [&](const std::string& job, int rank, int size) {
    RendezvousOptions place;
    place.url = folder.url();
    place.job = job;
    place.rank = Rank{rank};
    place.size = size;
    return join(place);
  };
  EXPECT_EQ(outcome(run_processes(4,
                                  [&](Rank rank) {
                                    {
                                      auto first = join_as("first", rank.value(), 4);
                                      ASSERT_TRUE(first) << outcome(first);
                                      if (rank == Rank{0}) {
                                        calling.wait(3);
                                        ::raise(SIGKILL);
                                      }
                                      calling.happen();
                                      expect_death_of(**first, (*first)->barrier(Deadline::never()),
                                                      0);
                                    }
                                    auto second = join_as("second", rank.value() - 1, 3);
                                    ASSERT_TRUE(second) << outcome(second);
                                    EXPECT_EQ(outcome((*second)->barrier(patient())), "");
                                  },
                                  {.doomed = {0}})),
            "");
  EXPECT_EQ(folder.files(), std::vector<std::string>{});
}

TEST(RendezvousDeath, a_rank_that_leaves_in_order_has_not_died) {
  EXPECT_EQ(outcome(run_control_processes(3,
                                          [](ControlPlane& me) {
                                            // Whoever leaves first, also the one that serves.
                                            EXPECT_EQ(outcome(me.barrier(patient())), "");
                                            if (me.rank() == Rank{0}) return;
                                            while (me.lost().empty()) std::this_thread::yield();
                                            EXPECT_EQ(outcome(me.quiesce(patient())), "");
                                            EXPECT_EQ(outcome(me.status()), "");
                                            expect_error(me.barrier(Deadline::never()),
                                                         Code::aborted, {"rank", "closed"});
                                          })),
            "");
}

}  // namespace
}  // namespace reshard
