// SPDX-License-Identifier: Apache-2.0
// Protects: a copy service moves what was submitted, matches local copies by task id, and reports
// what it cannot match.
#include "reshard/megatron/copy_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/registry.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::megatron {
namespace {

using ::testing::HasSubstr;

/// Runs body(service, rank) on n threads.
void with_services(int n, const std::function<void(CopyService&, Rank)>& body) {
  const auto ended = run_group_as_threads<InprocGroup>(n, [&](RankEnds& ends) {
    TransportCopyService service(*ends.transport, *ends.control, 60);
    body(service, ends.rank());
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

/// A matrix of bytes that count from `first`.
OwnedTensor counted(int first, const Dims& shape = {4, 6}) {
  OwnedTensor t = *make_tensor(DType::u8, shape);
  for (Index i = 0; i < t.view.num_elements(); ++i)
    t.view.data[i] = static_cast<std::byte>(first + i);
  return t;
}

std::vector<int> values(const TensorView& view) {
  OwnedTensor packed = *make_tensor(DType::u8, view.shape);
  EXPECT_TRUE(copy(view, packed.view));
  std::vector<int> out;
  for (std::byte b : bytes_of(packed.view)) out.push_back(std::to_integer<int>(b));
  return out;
}

TensorView part(const OwnedTensor& t, Interval rows, Interval columns) {
  return *slice(t.view, Box{rows, columns});
}

TEST(CopyService, moves_tensors_and_slices_with_gaps_by_task_id) {
  with_services(2, [](CopyService& service, Rank me) {
    const OwnedTensor mine = counted(me == Rank(0) ? 0 : 100), got = counted(200);
    const Rank peer(1 - me.value());
    const std::int64_t to = me.value(), from = peer.value();
    // Submitted in another order than the peer's receives.
    EXPECT_TRUE(service.submit_send(part(mine, {0, 2}, {0, 6}), peer, TaskId{to, 1}));
    EXPECT_TRUE(service.submit_send(part(mine, {2, 4}, {1, 3}), peer, TaskId{to, 0}));
    EXPECT_TRUE(service.submit_recv(part(got, {2, 4}, {4, 6}), peer, TaskId{from, 0}));
    EXPECT_TRUE(service.submit_recv(part(got, {0, 2}, {0, 6}), peer, TaskId{from, 1}));
    EXPECT_EQ(outcome(service.run()), "");
    const int first = me == Rank(0) ? 100 : 0;
    EXPECT_EQ(values(part(got, {0, 1}, {0, 6})),
              (std::vector{first, first + 1, first + 2, first + 3, first + 4, first + 5}));
    EXPECT_EQ(values(part(got, {2, 4}, {4, 6})),
              (std::vector{first + 13, first + 14, first + 19, first + 20}));
    EXPECT_EQ(values(part(got, {2, 3}, {0, 4})), (std::vector{212, 213, 214, 215}));
  });
}

TEST(CopyService, meets_transfers_without_ids_in_the_order_of_submission) {
  with_services(2, [](CopyService& service, Rank me) {
    for (int round = 0; round < 3; ++round) {
      const OwnedTensor a = counted(10 * round), b = counted(50 + round), got = counted(200);
      if (me == Rank(0)) {
        EXPECT_TRUE(service.submit_send(part(a, {0, 1}, {0, 2}), Rank(1)));
        EXPECT_TRUE(service.submit_send(part(b, {0, 1}, {0, 2}), Rank(1)));
      } else {
        EXPECT_TRUE(service.submit_recv(part(got, {0, 1}, {0, 2}), Rank(0)));
        EXPECT_TRUE(service.submit_recv(part(got, {1, 2}, {0, 2}), Rank(0)));
      }
      EXPECT_EQ(outcome(service.run()), "");
      if (me == Rank(1)) {
        EXPECT_EQ(values(part(got, {0, 2}, {0, 2})),
                  (std::vector{10 * round, 10 * round + 1, 50 + round, 51 + round}));
      }
    }
  });
}

TEST(CopyService, copies_what_stays_on_the_rank_by_task_id) {
  with_services(1, [](CopyService& service, Rank me) {
    const OwnedTensor a = counted(0), b = counted(100), got = counted(200);
    EXPECT_TRUE(service.submit_send(part(a, {0, 1}, {0, 6}), me, TaskId{7}));
    EXPECT_TRUE(service.submit_send(part(b, {0, 4}, {0, 1}), me, TaskId{7, 1}));
    EXPECT_TRUE(service.submit_recv(part(got, {0, 4}, {5, 6}), me, TaskId{7, 1}));
    EXPECT_TRUE(service.submit_recv(part(got, {3, 4}, {0, 6}), me, TaskId{7}));
    EXPECT_EQ(outcome(service.run()), "");
    EXPECT_EQ(values(part(got, {0, 3}, {5, 6})), (std::vector{100, 106, 112}));
    EXPECT_EQ(values(part(got, {3, 4}, {0, 5})), (std::vector{0, 1, 2, 3, 4}));
    EXPECT_EQ(outcome(service.run()), "") << "nothing was submitted since";
  });
}

/// The error message of run() on a group of one after `submit`; "" if it succeeds.
std::string refusal(const std::function<void(CopyService&, const TensorView&)>& submit) {
  std::string said;
  with_services(1, [&](CopyService& service, Rank) {
    const OwnedTensor t = counted(0);
    submit(service, t.view);
    const auto ran = service.run();
    said = ran ? "" : ran.error().message;
  });
  return said;
}

TEST(CopyService, a_local_copy_without_a_task_id_is_an_error) {
  EXPECT_THAT(refusal([](CopyService& s, const TensorView& t) {
                EXPECT_TRUE(s.submit_send(t, Rank(0)));
                EXPECT_TRUE(s.submit_recv(t, Rank(0)));
              }),
              HasSubstr("a local send has no task id"));
  EXPECT_THAT(refusal([](CopyService& s, const TensorView& t) {
                EXPECT_TRUE(s.submit_send(t, Rank(0), TaskId{1}));
                EXPECT_TRUE(s.submit_recv(t, Rank(0)));
              }),
              HasSubstr("a local receive has no task id"));
}

TEST(CopyService, a_task_id_twice_is_an_error) {
  EXPECT_THAT(refusal([](CopyService& s, const TensorView& t) {
                EXPECT_TRUE(s.submit_send(t, Rank(0), TaskId{5, 2}));
                EXPECT_TRUE(s.submit_send(t, Rank(0), TaskId{5, 2}));
              }),
              HasSubstr("two local sends with task id 5 part 2"));
}

TEST(CopyService, a_local_copy_with_one_side_is_an_error) {
  EXPECT_THAT(refusal([](CopyService& s, const TensorView& t) {
                EXPECT_TRUE(s.submit_recv(t, Rank(0), TaskId{3}));
              }),
              HasSubstr("no local send for the receive with task id 3"));
  EXPECT_THAT(refusal([](CopyService& s, const TensorView& t) {
                EXPECT_TRUE(s.submit_send(t, Rank(0), TaskId{4}));
              }),
              HasSubstr("no local receive for the send with task id 4"));
}

TEST(CopyService, local_tensors_that_differ_are_an_error) {
  const OwnedTensor other = counted(0, {3, 6});
  EXPECT_THAT(refusal([&](CopyService& s, const TensorView& t) {
                EXPECT_TRUE(s.submit_send(t, Rank(0), TaskId{3}));
                EXPECT_TRUE(s.submit_recv(other.view, Rank(0), TaskId{3}));
              }),
              HasSubstr("U8 [4, 6] into U8 [3, 6]"));
}

TEST(CopyService, an_error_on_one_rank_ends_the_wait_of_the_others) {
  with_services(2, [](CopyService& service, Rank me) {
    const OwnedTensor t = counted(0);
    if (me == Rank(0)) {
      EXPECT_TRUE(service.submit_recv(t.view, me, TaskId{3}));
    } else {
      EXPECT_TRUE(service.submit_recv(t.view, Rank(0), TaskId{1}));
    }
    const auto ran = service.run();
    ASSERT_FALSE(ran);
    EXPECT_THAT(ran.error().message, HasSubstr("task id 3"));
  });
}

TEST(CopyService, remote_task_ids_twice_are_an_error_before_anything_moves) {
  with_services(2, [](CopyService& service, Rank me) {
    const OwnedTensor t = counted(0);
    const Rank peer(1 - me.value());
    EXPECT_TRUE(service.submit_send(t.view, peer, TaskId{9}));
    EXPECT_TRUE(service.submit_send(t.view, peer, TaskId{9}));
    const auto ran = service.run();
    ASSERT_FALSE(ran);
    EXPECT_THAT(ran.error().message, HasSubstr("two sends with task id 9"));
  });
}

TEST(CopyService, refuses_ranks_and_ids_that_there_are_none_of) {
  with_services(1, [](CopyService& service, Rank me) {
    const OwnedTensor t = counted(0);
    EXPECT_FALSE(service.submit_send(t.view, Rank(1), TaskId{0}));
    EXPECT_FALSE(service.submit_recv(t.view, Rank(-1), TaskId{0}));
    EXPECT_FALSE(service.submit_send(t.view, me, TaskId{-1}));
    EXPECT_FALSE(service.submit_send(t.view, me, TaskId{std::int64_t{1} << 55}));
    EXPECT_FALSE(service.submit_send(t.view, me, TaskId{0, 256}));
  });
}

TEST(CopyService, is_of_no_use_after_close) {
  with_services(1, [](CopyService& service, Rank me) {
    const OwnedTensor t = counted(0);
    service.close();
    service.close();
    EXPECT_FALSE(service.submit_send(t.view, me, TaskId{0}));
    EXPECT_FALSE(service.run());
  });
}

TEST(MakeCopyService, takes_the_groups_own_transport_or_makes_one) {
  const auto ended = run_group_as_threads<InprocGroup>(2, [](RankEnds& ends) {
    const RefitGroup group{ends.control.get(), ends.transport.get()};
    const auto own = make_copy_service("inproc", group, 60);
    ASSERT_TRUE(own) << own.error().message;
    EXPECT_EQ((*own)->name(), "inproc");
    (*own)->close();
    const std::byte one{};
    EXPECT_TRUE(
        ends.transport->exchange(std::vector{Send{ends.rank(), MessageId{1}, {&one, 0}}}, {}))
        << "a transport that is borrowed stays open";
    const auto made = make_copy_service("shm", group, 60);
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ((*made)->name(), "shm");
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(MakeCopyService, says_why_a_backend_is_none) {
  const auto ended = run_group_as_threads<InprocGroup>(1, [](RankEnds& ends) {
    const RefitGroup group{ends.control.get(), nullptr};
    expect_error(make_copy_service("smoke", group, 60), Code::invalid_argument,
                 {"unknown backend 'smoke'", "shm", "nccl"});
    if (const auto nvshmem = find_transport("nvshmem"); !nvshmem->available)
      expect_error(make_copy_service("nvshmem", group, 60), Code::unsupported,
                   {"backend 'nvshmem': ", nvshmem->reason});
    expect_error(make_copy_service("inproc", group, 60), Code::invalid_argument,
                 {"pass it as the group's transport"});
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard::megatron
