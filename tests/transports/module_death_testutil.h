// SPDX-License-Identifier: Apache-2.0
// Kills processes of groups that use a module: their peers must survive and name them.
#pragma once

#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "reshard/transport/testing/conformance_ranks_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {

/// When the process of a rank is killed, in a step with a message in each direction between all.
enum class Death { before, during, after };

/// True if both messages with each peer arrived complete or the step failed as expected. Does not
/// return for the victim.
inline void die_or_survive(RankEnds& me, Rank victim, Death death, std::uint64_t polls,
                           const ProcessEvent& ready) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  // The others have made their transports, or received all their messages.
  const auto die = [&] {
    ready.wait(me.size() - 1);
    ::raise(SIGKILL);
  };
  if (me.rank() != victim && death == Death::before) ready.happen();
  if (me.rank() == victim && death == Death::before) die();
  std::vector<Bytes> payloads;
  std::vector<Room> rooms;
  for (int peer = 0; peer < me.size(); ++peer) {
    payloads.push_back(pattern(me.rank(), Rank{peer}, MessageId{1}, kBytes));
    rooms.emplace_back(Rank{peer}, MessageId{1}, kBytes);
  }
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (int peer = 0; peer < me.size(); ++peer) {
    if (Rank{peer} == me.rank()) continue;
    const auto i = static_cast<std::size_t>(peer);
    sends.push_back({Rank{peer}, MessageId{1}, payloads[i]});
    recvs.push_back(rooms[i].recv());
  }
  auto event = me.transport->exchange(sends, recvs);
  if (me.rank() == victim && death == Death::during) {
    for (std::uint64_t i = 0; event && i < polls; ++i) (void)(*event)->test();
    ::raise(SIGKILL);
  }
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  Result<> result = event ? (*event)->wait(deadline) : Result<>(tl::unexpected(event.error()));
  for (const Recv& recv : recvs)
    EXPECT_TRUE(!result || rooms[recv.from.index()].holds_pattern(me.rank()));
  // Killed once all messages have arrived: the next call that needs it fails.
  if (death == Death::after) {
    EXPECT_EQ(outcome(result), "");
    if (me.rank() == victim) die();
    ready.happen();
  }
  if (result) result = me.control->barrier(deadline);
  expect_error(result, Code::aborted, {"rank " + std::to_string(victim.value())});
  const Result<> quiet = me.control->quiesce(deadline);
  // Rank 0 serves the control plane: without it nobody knows which ranks are done.
  if (victim == Rank{0}) {
    expect_error(quiet, Code::aborted, {"rank 0"});
  } else {
    EXPECT_EQ(outcome(quiet), "");
  }
}

/// `rounds` groups of 3, in each of which one rank is killed; which and when depends on the seed.
/// RESHARD_DEATHS sets another number of rounds.
inline void kill_by_seed(const char* transport, std::uint64_t rounds,
                         const char* variable = nullptr, const char* value = nullptr) {
  if (const char* wanted = std::getenv("RESHARD_DEATHS"))
    rounds = std::strtoull(wanted, nullptr, 10);
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::uint64_t x = mix64(seed);
    const Rank victim{static_cast<int>(x % 3)};
    ProcessOptions options;
    options.doomed = {victim.value()};
    const ProcessEvent ready;
    const auto run = module_processes(transport, variable, value, options);
    const auto body = [&](RankEnds& me) {
      die_or_survive(me, victim, static_cast<Death>(seed % 3), (x >> 8) % 200, ready);
    };
    EXPECT_EQ(outcome(run(3, body)), "");
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace reshard
