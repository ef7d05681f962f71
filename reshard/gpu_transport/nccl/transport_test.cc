// SPDX-License-Identifier: Apache-2.0
// Protects: messages over NCCL arrive whole in every order of events; whatever fails, in every
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

/// The bytes of a message at one rank, in host memory or in that of its GPU.
class Memory {
 public:
  Memory(Rank rank, std::size_t bytes, bool on_gpu) : host_(bytes), on_gpu_(on_gpu) {
    if (!on_gpu) return;
    gpu_ = gpu_of_rank(rank);
    buffer_ = *cuda::Buffer::on_device(gpu_, static_cast<Index>(bytes));
  }
  std::span<std::byte> span() {
    return on_gpu_ ? std::span(buffer_.data(), host_.size()) : std::span(host_);
  }
  void write(const Bytes& bytes) {
    host_ = bytes;
    if (on_gpu_) cuda::write_to_gpu(gpu_, buffer_.data(), bytes);
  }
  Bytes read() const {
    return on_gpu_ ? cuda::read_from_gpu(gpu_, buffer_.data(), host_.size()) : host_;
  }

 private:
  Bytes host_;
  bool on_gpu_;
  std::shared_ptr<const cuda::Device> gpu_;
  cuda::Buffer buffer_;
};

struct Ordered {
  int from = 0, to = 0;
};

class NcclTransport : public testing::Test {
 protected:
  void SetUp() override {
    nccl_model().reset();
    cuda::emulated_gpu().reset();
    open_before_ = cuda::emulated_gpu().num_open();
  }
  void TearDown() override {
    EXPECT_EQ(nccl_model().num_open(), 0);
    EXPECT_EQ(cuda::emulated_gpu().num_open(), open_before_);
    nccl_model().reset();
  }

  static void run(int n, const RankBody& body, const GroupLimits& limits = {}) {
    EXPECT_EQ(outcome(run_nccl_ranks(n, body, limits)), "");
  }

 private:
  int open_before_ = 0;
};

GroupLimits small_limits() {
  return {.segment_bytes = 1000, .messages = 4, .peers = 2, .bytes = 4000, .host_bytes = 1500};
}

/// The ranks of a group in one thread: all calls but making the group return at once.
class OneThread {
 public:
  OneThread(int ranks, std::vector<Ordered> order)
      : group_(*InprocGroup::create(ranks)), ends_(static_cast<std::size_t>(ranks)) {
    const auto made = run_ranks(ranks, [&](Rank r) -> Result<> {
      ends_[r.index()].emplace(RESHARD_TRY(ends_of(group_, r, small_limits())));
      return {};
    });
    EXPECT_EQ(outcome(made), "");
    for (std::size_t i = 0; i < order.size(); ++i) add(i, order[i]);
    flying_.resize(ends_.size());
    begun_.resize(ends_.size());
  }

  /// Begins the next exchange of a rank, if it has less than two in progress.
  bool begin(std::size_t r) {
    auto& mine = exchanges_[static_cast<int>(r)];
    if (flying_[r].size() == 2 || begun_[r] == mine.size()) return false;
    Side& side = mine[begun_[r]++];
    const MessageId id{side.message};
    const Send send{Rank{side.peer}, id, side.memory.span(), 0};
    const Recv recv{Rank{side.peer}, id, side.memory.span(), 0};
    auto event = side.sending ? ends_[r]->transport->exchange({&send, 1}, {})
                              : ends_[r]->transport->exchange({}, {&recv, 1});
    EXPECT_TRUE(event) << outcome(event);
    if (event) flying_[r].push_back(std::move(*event));
    return true;
  }

  void poll(std::size_t r) {
    if (flying_[r].empty()) return;
    const Result<bool> done = flying_[r].front()->test();
    EXPECT_TRUE(done) << outcome(done);
    if (done && *done) flying_[r].pop_front();
  }

  /// Lets all ranks run. True if all messages arrived.
  bool finish() {
    for (int turn = 0; turn < 500; ++turn)
      for (std::size_t r = 0; r < ends_.size(); ++r) {
        while (begin(r)) {
        }
        poll(r);
      }
    for (std::size_t r = 0; r < ends_.size(); ++r) {
      if (!flying_[r].empty()) return false;
      for (Side& side : exchanges_[static_cast<int>(r)])
        if (side.memory.read() != side.bytes) return false;
    }
    return true;
  }

 private:
  struct Side {
    bool sending;
    int peer;
    std::uint64_t message;
    Bytes bytes;
    Memory memory;
  };

  /// A message is in host memory of one side and on the GPU of the other, and has two segments.
  void add(std::size_t i, Ordered m) {
    const Bytes bytes = pattern(Rank{m.from}, Rank{m.to}, MessageId{i}, 1300);
    const bool on_gpu = i % 2 == 0;
    auto& sends = exchanges_[m.from];
    sends.push_back({true, m.to, i, bytes, Memory(Rank{m.from}, bytes.size(), on_gpu)});
    sends.back().memory.write(bytes);
    exchanges_[m.to].push_back(
        {false, m.from, i, bytes, Memory(Rank{m.to}, bytes.size(), !on_gpu)});
  }

  InprocGroup group_;
  std::map<int, std::deque<Side>> exchanges_;  ///< one message each.
  std::vector<std::optional<RankEnds>> ends_;
  std::vector<std::deque<std::unique_ptr<Event>>> flying_;
  std::vector<std::size_t> begun_;
};

/// All sequences of `length` actions, each of one rank: to begin an exchange, or to poll.
void try_all_orders(int ranks, const std::vector<Ordered>& order, int length) {
  int sequences = 1;
  for (int i = 0; i < length; ++i) sequences *= 2 * ranks;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    OneThread group(ranks, order);
    for (int i = 0, left = sequence; i < length; ++i, left /= 2 * ranks) {
      const auto rank = static_cast<std::size_t>(left % (2 * ranks) / 2);
      if (left % 2 == 0)
        group.begin(rank);
      else
        group.poll(rank);
    }
    ASSERT_TRUE(group.finish()) << sequence;
  }
}

TEST_F(NcclTransport, two_ranks_that_send_to_each_other_end_in_every_order_of_events) {
  try_all_orders(2, {{0, 1}, {1, 0}, {1, 0}, {0, 1}}, 4);
}

TEST_F(NcclTransport, a_ring_of_three_ranks_ends_in_every_order_of_events) {
  try_all_orders(3, {{0, 1}, {1, 2}, {2, 0}}, 3);
}

TEST_F(NcclTransport, random_orders_of_five_ranks_end) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    nccl_model().seed = seed;
    std::vector<Ordered> order;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::uint64_t x = mix64(seed * 100 + i);
      const int from = static_cast<int>(x % 5);
      order.push_back({from, (from + 1 + static_cast<int>((x >> 8) % 4)) % 5});
    }
    OneThread group(5, order);
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::uint64_t x = mix64(seed * 1000 + i);
      if (x % 2 == 0)
        group.begin(x / 2 % 5);
      else
        group.poll(x / 2 % 5);
    }
    ASSERT_TRUE(group.finish()) << seed;
  }
}

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
  EXPECT_LE(nccl_model().largest_group, 4);
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
      n += cuda::emulated_gpu().calls[call];
    return n;
  };
  run(2, [&](RankEnds& me) {
    Memory memory(me.rank(), 3000, true);
    const Rank peer{1 - me.rank().value()};
    const Send send{peer, MessageId{1}, memory.span().first(1000), 0};
    const Recv recv{peer, MessageId{1}, memory.span().last(1000), 0};
    EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    const int before = allocations();
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    for (int i = 0; i < 5; ++i) EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
    EXPECT_EQ(allocations(), before);
    EXPECT_EQ(outcome(me.control->barrier(patient())), "");
  });
}

TEST_F(NcclTransport, memory_of_the_gpu_is_registered_and_other_memory_refused) {
  run(2, [](RankEnds& me) {
    EXPECT_TRUE(me.transport->capabilities().gpu_messages);
    EXPECT_TRUE(me.transport->capabilities().registers);
    Memory here(me.rank(), 4096, true);
    EXPECT_EQ(me.transport->share(here.span()), RemoteKey{});
    Bytes host(64);
    expect_error(me.transport->share(host), Code::unsupported, {"memory of its GPU"});
  });
}

/// What holds a message up, in the order in which a message passes.
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
        EXPECT_EQ(nccl_model().calls["ncclCommAbort"], 2);
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

/// What the ranks of a group of two get when they make their transports; `gpu` may change rank 1's.
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
  EXPECT_EQ(nccl_model().calls["ncclCommDestroy"], 4);
  nccl_model().faults[{1, "ncclCommFinalize"}] = 1;
  run(2, [](RankEnds&) {});
  EXPECT_EQ(nccl_model().calls["ncclCommAbort"], 1);
}

}  // namespace
}  // namespace reshard::nccl
