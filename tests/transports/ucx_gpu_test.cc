// SPDX-License-Identifier: Apache-2.0
// Protects: over a UCX that takes GPU memory, messages there keep the guarantees of every
// transport.
#include "reshard/gpu_transport/gpu_messages_testutil.h"
#include "reshard/transport/registry.h"
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/transports/cuda_aware_ucx.h"

namespace reshard {
namespace {

const TransportUnderTest kGpus{"ucx", ucx_with_gpu(), gpu_memories};
const TransportUnderTest kTcp{"ucx", ucx_with_gpu("UCX_TLS", "tcp,self,cuda_copy"),
                              gpu_to_host_memories};
RESHARD_TEST_MESSAGES(UcxGpus, kGpus);
RESHARD_TEST_MESSAGES(UcxGpuToHostTcp, kTcp);

TEST(UcxGpu, messages_are_put_into_shared_memory_of_gpus) {
  const auto body = [](RankEnds& me) {
    ASSERT_TRUE(me.transport->capabilities().registers);
    const Rank peer{1 - me.rank().value()};
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{5'000'000}}) {
      Room room(peer, MessageId{bytes}, bytes, me.memory.recvs);
      const Recv recv = room.recv();
      const auto key = me.transport->share(recv.bytes);
      ASSERT_TRUE(key) << outcome(key);
      const Block payload(me.memory.sends, pattern(me.rank(), peer, MessageId{bytes}, bytes));
      const Send send{peer, MessageId{bytes}, payload.bytes()};
      EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
      EXPECT_TRUE(room.holds_pattern(me.rank()));
      ASSERT_EQ(outcome(me.control->quiesce(patient())), "");
    }
  };
  const TransportUnderTest puts{"ucx", ucx_with_gpu("RESHARD_UCX_PUT", "on"), gpu_memories};
  EXPECT_EQ(outcome(puts.run_with_memory(2, body)), "");
}

TEST(UcxGpu, memory_on_a_gpu_is_not_shared_as_host_memory) {
  const auto body = [](RankEnds& me) {
    EXPECT_TRUE(me.transport->capabilities().gpu_messages);
    ASSERT_TRUE(me.transport->capabilities().direct) << "ranks on one host reach each other";
    const Block memory(me.memory.sends, 64);
    expect_error(me.transport->share(memory.bytes()), Code::unsupported, {"on a GPU"});
    Bytes host(64);
    EXPECT_TRUE(me.transport->share(host));
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  };
  EXPECT_EQ(outcome(kGpus.run_with_memory(2, body)), "");
}

TEST(UcxGpu, gpu_memory_is_refused_if_the_variables_leave_cuda_out) {
  const auto body = [](RankEnds& me) {
    EXPECT_FALSE(me.transport->capabilities().gpu_messages);
    EXPECT_EQ(outcome(me.control->quiesce(patient())), "");
  };
  for (const char* without : {"tcp,self", "^cuda", "^cma,cuda_copy"})
    EXPECT_EQ(outcome(ucx_with_gpu("UCX_TLS", without)(2, body)), "") << without;
}

TEST(UcxGpu, the_list_says_that_it_takes_gpu_memory) {
  if (!models_cuda_aware_ucx()) GTEST_SKIP() << "the library tells";
  // In a process of its own: UCX starts threads, after which no test could fork.
  const auto body = [](Rank) { EXPECT_EQ(find_transport("ucx")->gpu_reason, ""); };
  EXPECT_EQ(outcome(run_processes(1, body)), "");
}

}  // namespace
}  // namespace reshard
