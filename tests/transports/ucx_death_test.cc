// SPDX-License-Identifier: Apache-2.0
// Protects: when a process is killed, its peers over ucx survive and name it; puts arrive in
// registered memory, and nowhere else.
#include "tests/transports/module_death_testutil.h"

namespace reshard {
namespace {

TEST(UcxDeath, the_peers_of_a_killed_process_end_and_name_it) { kill_by_seed("ucx", 12); }

TEST(UcxDeath, the_peers_of_a_killed_process_end_and_name_it_over_tcp) {
  kill_by_seed("ucx", 12, "UCX_TLS", "tcp");
}

/// All ranks send to all, into a shared region and into other memory.
void put_to_all(RankEnds& me) {
  constexpr std::size_t kBytes = 300'000;
  const auto n = static_cast<std::size_t>(me.size());
  Bytes memory(n * kBytes), outside(n * kBytes);
  ASSERT_TRUE(me.transport->capabilities().registers);
  ASSERT_TRUE(me.transport->share(memory));
  for (std::uint64_t round = 0; round < 3; ++round) {
    std::vector<Bytes> payloads;
    for (std::size_t i = 0; i < 2 * n; ++i)
      payloads.push_back(
          pattern(me.rank(), Rank{static_cast<int>(i % n)}, MessageId{2 * round + i / n}, kBytes));
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    for (std::size_t i = 0; i < 2 * n; ++i) {
      const Rank peer{static_cast<int>(i % n)};
      const MessageId id{2 * round + i / n};
      sends.push_back({peer, id, payloads[i]});
      recvs.push_back(
          {peer, id, std::span(i < n ? memory : outside).subspan(i % n * kBytes, kBytes)});
    }
    EXPECT_EQ(outcome(step(*me.transport, sends, recvs)), "");
    for (const Recv& recv : recvs)
      EXPECT_TRUE(Bytes(recv.bytes.begin(), recv.bytes.end()) ==
                  pattern(recv.from, me.rank(), recv.id, kBytes));
  }
  EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
}

TEST(UcxPut, messages_into_registered_memory_arrive) {
  const Setting puts("RESHARD_UCX_PUT", "on");
  for (const int n : {2, 3, 5}) EXPECT_EQ(outcome(module_processes("ucx")(n, put_to_all)), "");
}

TEST(UcxPut, messages_into_registered_memory_arrive_over_tcp) {
  const Setting puts("RESHARD_UCX_PUT", "on");
  for (const int n : {2, 3})
    EXPECT_EQ(outcome(module_processes("ucx", "UCX_TLS", "tcp")(n, put_to_all)), "");
}

}  // namespace
}  // namespace reshard
