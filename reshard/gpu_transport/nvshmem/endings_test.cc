// SPDX-License-Identifier: Apache-2.0
// Protects: whatever ends a group, in whatever state, every event completes, nothing touches the
// memory of its messages afterwards, and the processes can make another group.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/gpu_transport/nvshmem/by_hand_testutil.h"

namespace reshard::nvshmem {
namespace {

using testing::HasSubstr;

constexpr std::size_t kSegment = 4096;

enum class Ending { abort, deadline, dropped, closed, failed_driver };

std::string name_of(Ending ending) {
  switch (ending) {
    case Ending::abort: return "abort";
    case Ending::deadline: return "deadline";
    case Ending::dropped: return "dropped_event";
    case Ending::closed: return "closed_transport";
    case Ending::failed_driver: return "failed_driver";
  }
  return "";
}

/// Both ranks send to each other, one of them several segments.
const std::vector<PlannedMessage> kMessages = {
    {0, 1, 7, 3 * kSegment + 5}, {1, 0, 7, 100}, {0, 1, 8, 0}};

/// Ends the group on this rank. The outcome of its event, if there still is one.
Result<> end(ByHand& ranks, int rank, Ending how) {
  const NvshmemModel::As as(ranks.model(), rank);
  std::unique_ptr<Event>& event = ranks.event(rank);
  switch (how) {
    case Ending::abort: ranks.ends(rank).control->abort("out of paper"); break;
    case Ending::deadline: break;
    case Ending::dropped: event.reset(); return {};
    case Ending::closed: ranks.ends(rank).transport->close(); break;
    case Ending::failed_driver: cuda::emulated_gpu().faults["cuMemcpyAsync"] = 700; break;
  }
  return event->wait(how == Ending::deadline ? Deadline::after(std::chrono::seconds(0))
                                             : patient());
}

/// Checks the errors, if any, of the rank that ends the group and of the other one.
void check_said(Ending how, const Result<>& first, const Result<>& other) {
  const std::map<Ending, std::pair<Code, std::string>> said = {
      {Ending::abort, {Code::aborted, "out of paper"}},
      {Ending::deadline, {Code::deadline, "deadline passed"}},
      {Ending::closed, {Code::aborted, "closed its transport before this was done"}},
      {Ending::failed_driver, {Code::io, "cuMemcpyAsync"}},
  };
  if (!first) {
    EXPECT_EQ(name(first.error().code), name(said.at(how).first)) << first.error().message;
    EXPECT_THAT(first.error().message, HasSubstr(said.at(how).second));
  }
  if (other) return;
  EXPECT_EQ(other.error().code, Code::aborted) << other.error().message;
  EXPECT_THAT(other.error().message,
              HasSubstr(how == Ending::abort ? "out of paper" : "before this was done"));
}

/// Fills the memory of all messages, which belongs to the caller again, lets everything that is
/// still on its way arrive, and checks that nothing was written.
void expect_untouched(ByHand& ranks) {
  std::vector<Bytes> before;
  for (auto& [to, room] : ranks.rooms()) {
    const auto bytes = room.recv().bytes;
    std::ranges::fill(bytes, std::byte{0x5a});
    before.emplace_back(bytes.begin(), bytes.end());
  }
  ranks.model().deliver_all();
  for (int i = 0; i < 3; ++i) ranks.settle_all();
  ranks.model().deliver_all();
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(ranks.rooms()[i].second.recv().bytes, before[i]));
}

/// Runs until `arrivals` have arrived, then ends the group on this rank. False if all was done
/// before.
bool run_and_end(ByHand& ranks, std::size_t arrivals, int rank, Ending how) {
  ranks.begin(kMessages);
  bool done = false;
  for (std::size_t i = 0; i < arrivals && !done; ++i) {
    // The latest first: the furthest from the order in which they were sent.
    const std::size_t n = ranks.model().num_deliverable();
    if (n != 0) ranks.model().deliver(n - 1);
    done = ranks.settle_all() && ranks.model().num_deliverable() == 0;
  }
  const Result<> first = end(ranks, rank, how);
  cuda::emulated_gpu().faults.clear();
  ranks.model().deliver_all();
  const int peer = 1 - rank;
  for (int i = 0; i < 4; ++i) {
    (void)ranks.settle(peer);
    ranks.model().deliver_all();
  }
  // A peer that has not heard of the end may wait for a message that nobody will send.
  const bool quiet = how == Ending::dropped || how == Ending::deadline;
  const NvshmemModel::As as(ranks.model(), peer);
  const Result<> other =
      ranks.event(peer)->wait(quiet ? Deadline::after(std::chrono::milliseconds(1)) : patient());
  if (how == Ending::dropped) {
    EXPECT_TRUE(other || other.error().code == Code::aborted ||
                other.error().code == Code::deadline);
  } else {
    check_said(how, first, other);
  }
  return !done;
}

void end_in_every_state(Ending how, NvshmemModel::Options options) {
  for (const int rank : {0, 1}) {
    ByHand ranks(options);
    std::size_t states = 0;
    for (bool more = true; more && !testing::Test::HasFailure(); ++states) {
      SCOPED_TRACE(name_of(how) + " of rank " + std::to_string(rank) + " after " +
                   std::to_string(states) + " arrivals");
      more = run_and_end(ranks, states, rank, how);
      expect_untouched(ranks);
      ranks.leave();
      ranks.enter();
      ranks.begin(kMessages);
      ranks.run([](std::size_t) { return std::size_t{0}; }, false);
    }
    EXPECT_GT(states, 10U);
  }
}

class NvshmemEndings : public testing::TestWithParam<Ending> {};

TEST_P(NvshmemEndings, end_a_group_in_every_state_over_a_network) {
  end_in_every_state(GetParam(), {.pes = 2, .mapped = false});
}

TEST_P(NvshmemEndings, end_a_group_in_every_state_over_mapped_memory) {
  end_in_every_state(GetParam(), {.pes = 2, .order = NvshmemModel::Order::stream});
}

INSTANTIATE_TEST_SUITE_P(Nvshmem, NvshmemEndings,
                         testing::Values(Ending::abort, Ending::deadline, Ending::dropped,
                                         Ending::closed, Ending::failed_driver),
                         [](const auto& tested) { return name_of(tested.param); });

TEST(NvshmemEnding, a_rank_that_is_done_leaves_and_what_it_sent_still_arrives) {
  ByHand ranks({.pes = 2});
  ranks.begin({{0, 1, 1, 10}});
  // Everything arrives, but rank 1 does not look before rank 0 has closed.
  for (int i = 0; i < 3; ++i) {
    ranks.model().deliver_all();
    (void)ranks.settle(0);
  }
  (void)ranks.settle(1);
  ranks.model().deliver_all();
  EXPECT_EQ(ranks.settle(0), true);
  {
    const NvshmemModel::As as(ranks.model(), 0);
    ranks.ends(0).transport->close();
  }
  ranks.model().deliver_all();
  EXPECT_EQ(ranks.settle(1), true);
  EXPECT_TRUE(ranks.rooms()[0].second.holds_pattern(Rank{1}));
}

}  // namespace
}  // namespace reshard::nvshmem
