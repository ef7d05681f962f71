// SPDX-License-Identifier: Apache-2.0
// Protects: messages go from GPU or host memory to either, and take no detour where they need none.
#include <gmock/gmock.h>

#include "reshard/gpu_transport/nvshmem/model_group_testutil.h"

namespace reshard::nvshmem {
namespace {

constexpr std::size_t kStaging = std::size_t{1} << 20;

/// Bytes in the memory of the GPU, or in host memory.
class Memory {
 public:
  Memory(bool on_device, std::size_t bytes) : host_(on_device ? 0 : bytes) {
    if (!on_device) return;
    auto made = cuda::Buffer::on_device(cuda::gpu_under_test(), static_cast<Index>(bytes));
    EXPECT_TRUE(made) << outcome(made);
    if (made) device_ = *std::move(made);
  }
  std::span<std::byte> bytes() {
    if (device_.data() == nullptr) return host_;
    return {device_.data(), static_cast<std::size_t>(device_.size())};
  }
  void write(const Bytes& from) {
    if (device_.data() != nullptr) {
      cuda::write_to_gpu(cuda::gpu_under_test(), device_.data(), from);
    } else {
      host_ = from;
    }
  }
  Bytes read() {
    if (device_.data() == nullptr) return host_;
    return cuda::read_from_gpu(cuda::gpu_under_test(), device_.data(), bytes().size());
  }

 private:
  cuda::Buffer device_;
  Bytes host_;
};

/// Every rank sends to every rank, itself included, from and to both kinds of memory.
void exchange_all_kinds(RankEnds& me) {
  constexpr std::size_t kSizes[] = {1, 4097, 300'000};
  std::deque<Memory> memories;
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  std::vector<std::pair<Memory*, Bytes>> expected;
  for (int peer = 0; peer < me.size(); ++peer) {
    for (std::uint64_t id = 0; id < 4 * std::size(kSizes); ++id) {
      const std::size_t bytes = kSizes[id / 4];
      Memory& from = memories.emplace_back((id & 1) != 0, bytes);
      from.write(pattern(me.rank(), Rank{peer}, MessageId{id}, bytes));
      sends.push_back({Rank{peer}, MessageId{id}, from.bytes()});
      Memory& to = memories.emplace_back((id & 2) != 0, bytes);
      recvs.push_back({Rank{peer}, MessageId{id}, to.bytes()});
      expected.emplace_back(&to, pattern(Rank{peer}, me.rank(), MessageId{id}, bytes));
    }
  }
  EXPECT_EQ(outcome(step(*me.transport, sends, recvs)), "");
  for (auto& [memory, bytes] : expected) EXPECT_TRUE(memory->read() == bytes);
}

TEST(NvshmemDeviceMessages, go_from_and_to_any_memory_over_a_network) {
  ModelGroup group({.pes = 3, .mapped = false}, kStaging);
  EXPECT_EQ(outcome(group.run({0, 1, 2}, exchange_all_kinds)), "");
  EXPECT_EQ(group.model().num_direct_puts(), 0);
}

TEST(NvshmemDeviceMessages, in_gpu_memory_are_put_from_where_they_are_if_peers_are_mapped) {
  ModelGroup group({.pes = 3, .order = NvshmemModel::Order::stream}, kStaging);
  EXPECT_EQ(outcome(group.run({0, 1, 2}, exchange_all_kinds)), "");
  EXPECT_EQ(2 * group.model().num_direct_puts(), group.model().num_puts());
}

TEST(NvshmemDeviceMessages, the_transport_says_that_it_takes_them) {
  ModelGroup group({.pes = 1}, kStaging);
  const auto body = [](RankEnds& me) {
    EXPECT_EQ(me.transport->capabilities(), (Capabilities{.message = true, .gpu_messages = true}));
    EXPECT_FALSE(me.transport->share({}));
    EXPECT_FALSE(me.transport->get({}));
  };
  EXPECT_EQ(outcome(group.run({0}, body)), "");
}

}  // namespace
}  // namespace reshard::nvshmem
