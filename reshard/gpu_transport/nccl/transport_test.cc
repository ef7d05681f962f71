// SPDX-License-Identifier: Apache-2.0
// Protects: messages over NCCL arrive whole, from and to any memory; whatever fails, in every
// state, every wait ends with the reason, and all is given back.
#include "reshard/gpu_transport/nccl/transport.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/memory.h"
#include "reshard/gpu_transport/nccl/nccl_group_testutil.h"

namespace reshard::nccl {
namespace {

class NcclTransport : public WithNcclModel {
 protected:
  static void run(int n, const RankBody& body, const GroupLimits& limits = {}) {
    EXPECT_EQ(outcome(run_nccl_ranks(n, body, limits)), "");
  }
};

TEST_F(NcclTransport, bytes_of_hosts_and_gpus_arrive_in_each_other_in_segments) {
  run(
      2,
      [](RankEnds& me) {
        std::uint64_t id = 0;
        for (const bool from_gpu : {false, true})
          for (const bool to_gpu : {false, true})
            for (const std::size_t bytes : {1UL, 999UL, 1000UL, 1001UL, 12345UL}) {
              const MessageId m{++id};
              const Bytes want = pattern(Rank{0}, Rank{1}, m, bytes);
              const bool sends = me.rank() == Rank{0};
              Memory memory(me.rank(), bytes, sends ? from_gpu : to_gpu);
              if (sends) memory.write(want);
              const Send send{Rank{1}, m, memory.span(), 0};
              const Recv recv{Rank{0}, m, memory.span(), 0};
              EXPECT_EQ(outcome(sends ? step(*me.transport, {&send, 1}, {})
                                      : step(*me.transport, {}, {&recv, 1})),
                        "");
              EXPECT_EQ(memory.read(), want) << from_gpu << to_gpu << bytes;
            }
      },
      small_limits());
  EXPECT_EQ(nccl_model().largest_message, 1000U);
  EXPECT_EQ(nccl_model().largest_group, 1);
}

TEST_F(NcclTransport, messages_of_a_rank_to_itself_may_cross_between_host_and_gpu) {
  run(1, [](RankEnds& me) {
    const Bytes want = pattern(Rank{0}, Rank{0}, MessageId{1}, 5000);
    Memory from(Rank{0}, 5000, true), to(Rank{0}, 5000, false);
    from.write(want);
    const Send send{Rank{0}, MessageId{1}, from.span(), 0};
    const Recv recv{Rank{0}, MessageId{1}, to.span(), 0};
    EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
    EXPECT_EQ(to.read(), want);
    Bytes shorter(10);
    const Recv wrong{Rank{0}, MessageId{2}, shorter, 0};
    const Send large{Rank{0}, MessageId{2}, from.span(), 0};
    expect_error(step(*me.transport, {&large, 1}, {&wrong, 1}), Code::invalid_argument,
                 {"message 2", "5000", "10"});
  });
}

TEST_F(NcclTransport, memory_of_another_gpu_is_refused_by_name) {
  run(2, [](RankEnds& me) {
    const Rank peer{1 - me.rank().value()};
    Memory memory(peer, 8, true);
    const Send send{peer, MessageId{3}, memory.span(), 0};
    expect_error(me.transport->exchange({&send, 1}, {}), Code::invalid_argument,
                 {"message 3", "on GPU " + std::to_string(peer.value())});
    // Nothing has begun: the group goes on.
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
  });
}

TEST_F(NcclTransport, an_id_in_use_is_refused_until_its_exchange_is_done) {
  run(2, [](RankEnds& me) {
    const bool sends = me.rank() == Rank{0};
    Bytes memory(8);
    const Send send{Rank{1}, MessageId{5}, memory, 0};
    const Recv recv{Rank{0}, MessageId{5}, memory, 0};
    const auto post = [&] {
      return sends ? me.transport->exchange({&send, 1}, {})
                   : me.transport->exchange({}, {&recv, 1});
    };
    for (int round = 0; round < 3; ++round) {
      auto event = post();
      ASSERT_TRUE(event) << outcome(event);
      expect_error(post(), Code::invalid_argument, {"message 5", "in use"});
      EXPECT_EQ(outcome((*event)->wait(patient())), "");
    }
  });
}

TEST_F(NcclTransport, a_steady_exchange_asks_the_driver_for_nothing) {
  const auto allocations = [] {
    int n = 0;
    for (const char* call : {"cuMemAlloc", "cuMemHostAlloc", "cuMemFree", "cuMemFreeHost",
                             "cuStreamCreate", "cuEventCreate", "cuStreamSynchronize"})
      if (const auto made = cuda::emulated_gpu().calls.find(call);
          made != cuda::emulated_gpu().calls.end())
        n += made->second;
    return n;
  };
  run(2, [&](RankEnds& me) {
    Memory memory(me.rank(), 3000, true);
    const Rank peer{1 - me.rank().value()};
    const Send send{peer, MessageId{1}, memory.span().first(1000), 0};
    const Recv recv{peer, MessageId{1}, memory.span().last(1000), 0};
    EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    // Between barriers, so no rank calls the driver.
    const int before = allocations();
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    for (int i = 0; i < 5; ++i) EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    EXPECT_EQ(allocations(), before);
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
  });
}

TEST_F(NcclTransport, takes_messages_on_gpus_in_rounds_and_registers_no_memory) {
  run(2, [](RankEnds& me) {
    EXPECT_TRUE(me.transport->capabilities().gpu_messages);
    EXPECT_TRUE(me.transport->capabilities().rounds);
    EXPECT_FALSE(me.transport->capabilities().registers);
    Memory here(me.rank(), 4096, true);
    expect_error(me.transport->share(here.span()), Code::unsupported, {"reads the memory"});
  });
}

TEST_F(NcclTransport, groups_that_follow_each_other_do_not_wait_for_the_gpu) {
  run(2, [](RankEnds& me) {
    constexpr std::size_t kGroups = 6;
    const bool sends = me.rank() == Rank{0};
    const Rank peer{1 - me.rank().value()};
    std::deque<Memory> memory;
    std::vector<std::unique_ptr<Event>> events;
    for (std::size_t i = 0; i < kGroups; ++i) {
      const Bytes want = pattern(Rank{0}, Rank{1}, MessageId{i}, 100);
      memory.emplace_back(me.rank(), 100, true);
      if (sends) memory.back().write(want);
      const Send send{peer, MessageId{i}, memory.back().span(), 0};
      const Recv recv{peer, MessageId{i}, memory.back().span(), 0};
      auto event =
          sends ? me.transport->exchange({&send, 1}, {}) : me.transport->exchange({}, {&recv, 1});
      ASSERT_TRUE(event) << outcome(event);
      events.push_back(std::move(*event));
    }
    // In any order: to wait for the last is to let all before it run.
    EXPECT_EQ(outcome(events.back()->wait(patient())), "");
    for (std::size_t i = 0; i < kGroups; ++i) {
      EXPECT_EQ(outcome(events[i]->wait(patient())), "");
      EXPECT_EQ(memory[i].read(), pattern(Rank{0}, Rank{1}, MessageId{i}, 100));
    }
  });
}

/// The stages of a message, in the order in which it passes them.
enum class Stage { not_accepted, in_flight, done };

/// A receive of rank 0 from rank 1 that is in a stage, ended by f(rank 0's event, its ends).
/// Rank 0 calls prepare() before it posts it. Before that, the ranks connect with another message,
/// but for the first stage.
template <class F>
void at_stage(Stage stage, F&& f, const std::function<void()>& prepare = [] {}) {
  nccl_model().polls_to_accept = stage == Stage::not_accepted ? NcclModel::kNever : 1;
  const auto body = [&](RankEnds& me) {
    Memory memory(me.rank(), 100, true);
    const auto post = [&](std::uint64_t id) {
      const Send send{Rank{0}, MessageId{id}, memory.span(), 0};
      const Recv recv{Rank{1}, MessageId{id}, memory.span(), 0};
      return me.rank() == Rank{0} ? me.transport->exchange({}, {&recv, 1})
                                  : me.transport->exchange({&send, 1}, {});
    };
    const auto pass = [&](std::uint64_t id) {
      auto event = post(id);
      EXPECT_EQ(outcome((*event)->wait(patient())), "");
      EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    };
    if (stage != Stage::not_accepted) pass(8);
    if (me.rank() == Rank{0}) {
      prepare();
      auto event = post(9);
      ASSERT_TRUE(event) << outcome(event);
      for (int i = 0; i < 5; ++i) (void)(*event)->test();
      if (stage == Stage::done) {
        EXPECT_EQ(outcome((*event)->wait(patient())), "");
        EXPECT_EQ(outcome(me.control->barrier(patient())), "");
      }
      f(*event, me);
    } else if (stage == Stage::done) {
      pass(9);
    }
    (void)me.control->quiesce(patient());
  };
  EXPECT_EQ(outcome(run_nccl_ranks(2, body)), "");
}

TEST_F(NcclTransport, an_abort_ends_a_message_in_every_state) {
  for (const Stage stage : {Stage::not_accepted, Stage::in_flight, Stage::done})
    at_stage(stage, [&](std::unique_ptr<Event>& event, RankEnds& me) {
      me.control->abort("enough");
      const Result<> ended = event->wait(Deadline::never());
      if (stage == Stage::done) {
        EXPECT_EQ(outcome(ended), "");
      } else {
        expect_error(ended, Code::aborted, {"rank 0", "enough"});
      }
      expect_error(me.transport->exchange({}, {}), Code::aborted, {"enough"});
    });
}

TEST_F(NcclTransport, a_deadline_ends_a_message_in_every_state_and_names_it) {
  for (const Stage stage : {Stage::not_accepted, Stage::in_flight})
    at_stage(stage, [&](std::unique_ptr<Event>& event, RankEnds& me) {
      expect_error(event->wait(brief()), Code::deadline, {"message 9", "from rank 1"});
      expect_error(event->wait(Deadline::never()), Code::deadline, {"message 9"});
      expect_error(me.transport->exchange({}, {}), Code::deadline, {"message 9"});
    });
}

TEST_F(NcclTransport, a_dropped_event_or_a_closed_transport_ends_the_group_in_every_state) {
  for (const Stage stage : {Stage::not_accepted, Stage::in_flight})
    for (const bool drop : {false, true})
      at_stage(stage, [&](std::unique_ptr<Event>& event, RankEnds& me) {
        if (drop) {
          event.reset();
          expect_error(me.transport->exchange({}, {}), Code::aborted, {"destroyed"});
        } else {
          me.transport->close();
          expect_error(event->wait(Deadline::never()), Code::aborted, {"rank 0 closed"});
        }
        EXPECT_EQ(nccl_model().calls["ncclCommAbort"], 1);
        nccl_model().calls.clear();
      });
}

TEST_F(NcclTransport, an_error_of_nccl_while_a_message_is_under_way_ends_the_group) {
  at_stage(
      Stage::in_flight,
      [](std::unique_ptr<Event>& event, RankEnds&) {
        expect_error(event->wait(patient()), Code::aborted, {"remote process exited"});
      },
      [] { nccl_model().async_errors[0] = 6; });
}

TEST_F(NcclTransport, calls_that_fail_end_the_group_with_their_name) {
  for (const char* call : {"ncclRecv", "ncclGroupEnd", "ncclCommGetAsyncError"})
    at_stage(
        Stage::in_flight,
        [](std::unique_ptr<Event>& event, RankEnds&) {
          expect_error(event->wait(patient()), Code::aborted, {"nccl: ", "modelled"});
        },
        [&] { nccl_model().faults[{0, call}] = 3; });
}

/// The outcome of making a transport on each rank of a group of two; rank 1 may have no GPU.
std::vector<std::string> outcomes_of_making(Deadline deadline, bool rank_1_has_gpu = true) {
  std::vector<std::string> out(2);
  auto group = *InprocGroup::create(2);
  cuda::set_emulated_devices(16);
  EXPECT_EQ(outcome(run_ranks(2,
                              [&](Rank rank) -> Result<> {
                                auto control = RESHARD_TRY(group.control(rank));
                                Result<std::shared_ptr<const cuda::Device>> gpu = gpu_of_rank(rank);
                                if (rank == Rank{1} && !rank_1_has_gpu)
                                  gpu = fail(Code::unsupported, "no GPU here");
                                auto made = make_transport(*control, model_nccl(), gpu, deadline);
                                out[rank.index()] = outcome(made);
                                if (!made) control->abort(made.error().message);
                                made = fail(Code::aborted, "gone");
                                return control->quiesce(patient());
                              })),
            "");
  return out;
}

TEST_F(NcclTransport, a_rank_without_a_gpu_is_named_to_all) {
  for (const std::string& said : outcomes_of_making(patient(), false))
    EXPECT_EQ(said, "unsupported: transport nccl: rank 1: no GPU here");
}

TEST_F(NcclTransport, ranks_that_do_not_join_end_at_the_deadline) {
  nccl_model().polls_to_join = NcclModel::kNever;
  const auto said = outcomes_of_making(brief());
  EXPECT_NE((said[0] + said[1]).find("not all ranks joined"), std::string::npos) << said[0];
  EXPECT_FALSE(said[0].empty() || said[1].empty());
}

TEST_F(NcclTransport, a_rank_that_nccl_refuses_ends_the_wait_of_the_others) {
  nccl_model().faults[{1, "ncclCommInitRankConfig"}] = kInvalidUsage;
  const auto said = outcomes_of_making(patient());
  EXPECT_NE(said[1].find("unsupported: transport nccl: nccl: ncclCommInitRankConfig: modelled"),
            std::string::npos)
      << said[1];
  EXPECT_NE(said[0].find("aborted"), std::string::npos) << said[0];
}

TEST_F(NcclTransport, leaving_cleanly_finalizes_and_aborts_if_that_fails) {
  run(2, [](RankEnds&) {});
  EXPECT_EQ(nccl_model().calls["ncclCommAbort"], 0);
  EXPECT_EQ(nccl_model().calls["ncclCommDestroy"], 2);
  nccl_model().faults[{1, "ncclCommFinalize"}] = 1;
  run(2, [](RankEnds&) {});
  EXPECT_EQ(nccl_model().calls["ncclCommAbort"], 1);
}

}  // namespace
}  // namespace reshard::nccl
