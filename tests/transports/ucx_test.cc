// SPDX-License-Identifier: Apache-2.0
// Protects: ucx keeps the guarantees of every transport, over shared memory and over TCP, by
// rendezvous and by puts.
#include "reshard/transport/registry.h"
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kProcesses{"ucx", module_processes("ucx")};
const TransportUnderTest kTcp{"ucx", module_processes("ucx", "UCX_TLS", "tcp")};
const TransportUnderTest kPuts{"ucx", module_processes("ucx", "RESHARD_UCX_PUT", "on")};
RESHARD_TEST_TRANSPORT(UcxPuts, kPuts);
RESHARD_TEST_TRANSPORT(UcxProcesses, kProcesses);
RESHARD_TEST_TRANSPORT(UcxTcpProcesses, kTcp);

TEST(Ucx, without_cuda_moves_host_memory_as_without_a_gpu) {
  const auto make = [](ControlPlane& control) {
    TransportOptions options;
    options.gpu = 0;
    return make_transport("ucx", control, options);
  };
  const auto body = [](RankEnds& me) {
    const std::string why = find_transport("ucx")->gpu_reason;
    if (why.empty()) return;  // This machine has a GPU and a library that takes its memory.
    EXPECT_FALSE(me.transport->capabilities().gpu_messages) << why;
    EXPECT_TRUE(me.transport->capabilities().direct);
    Traffic traffic(me);
    const Rank peer{1 - me.rank().value()};
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{100'000}}) {
      traffic.send(peer, MessageId{bytes}, bytes);
      traffic.recv(peer, MessageId{bytes}, bytes);
    }
    EXPECT_EQ(outcome(step(*me.transport, traffic.sends, traffic.recvs())), "");
    EXPECT_EQ(traffic.wrong(), 0U);
  };
  EXPECT_EQ(outcome(run_ranks_as_processes(2, make, body)), "");
}

}  // namespace
}  // namespace reshard
