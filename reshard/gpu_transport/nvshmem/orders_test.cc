// SPDX-License-Identifier: Apache-2.0
// Protects: in whatever order puts and signals arrive and ranks look, every byte of a message gets
// to its place, no slot is written before it has been read, and no stream waits for a peer.
#include <limits>

#include "reshard/base/hash.h"
#include "reshard/gpu_transport/nvshmem/by_hand_testutil.h"

namespace reshard::nvshmem {
namespace {

using Order = NvshmemModel::Order;

constexpr std::size_t kAllOrders = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kSegment = 4096;

/// Runs the messages in all orders within `most`. Returns how many these are.
std::size_t enumerate(const NvshmemModel::Options& options, std::size_t most, bool choose_who_looks,
                      const std::vector<PlannedMessage>& messages) {
  ByHand ranks(options);
  Choices choices(most);
  do {
    ranks.begin(messages);
    ranks.run([&](std::size_t n) { return choices.choose(n); }, choose_who_looks);
  } while (!testing::Test::HasFailure() && choices.next());
  testing::Test::RecordProperty("orders", std::to_string(choices.runs()));
  return choices.runs();
}

TEST(NvshmemOrders, one_segment_arrives_in_every_order_of_arrivals_and_looks) {
  EXPECT_GT(enumerate({.pes = 2}, kAllOrders, true, {{0, 1, 7, 100}}), 1000U);
}

TEST(NvshmemOrders, four_segments_arrive_over_mapped_memory_whoever_looks_when) {
  EXPECT_GT(enumerate({.pes = 2, .order = Order::stream}, 4, true, {{0, 1, 7, 4 * kSegment}}),
            100U);
}

TEST(NvshmemOrders, crossing_messages_arrive_in_every_order_of_the_streams) {
  EXPECT_GT(enumerate({.pes = 2, .order = Order::stream}, kAllOrders, false,
                      {{0, 1, 7, 10}, {1, 0, 7, 10}}),
            100U);
}

TEST(NvshmemOrders, three_segments_arrive_in_orders_up_to_eight_apart_from_first_in_first_out) {
  EXPECT_GT(enumerate({.pes = 2, .mapped = false}, 8, false, {{0, 1, 7, 2 * kSegment + 1}}), 1000U);
}

TEST(NvshmemOrders, both_directions_at_once) {
  EXPECT_GT(enumerate({.pes = 2}, 3, false, {{0, 1, 7, kSegment + 9}, {1, 0, 7, 5}, {0, 1, 8, 0}}),
            500U);
}

TEST(NvshmemOrders, three_ranks_in_a_ring) {
  EXPECT_GT(enumerate({.pes = 3}, 2, false,
                      {{0, 1, 1, kSegment + 1}, {1, 2, 1, 3 * kSegment}, {2, 0, 1, 17}}),
            100U);
}

TEST(NvshmemOrders, random_messages_of_up_to_five_ranks_in_random_orders) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const int pes = 2 + static_cast<int>(seed % 4);
    ByHand ranks(
        {.pes = pes, .order = seed % 3 == 0 ? Order::stream : Order::any, .mapped = seed % 2 == 0});
    std::uint64_t x = mix64(seed);
    const auto draw = [&](std::size_t n) { return (x = mix64(x)) % n; };
    for (int round = 0; round < 3; ++round) {
      std::vector<PlannedMessage> messages;
      for (std::uint64_t id = 0; id < 12; ++id)
        messages.push_back({static_cast<int>(draw(static_cast<std::size_t>(pes))),
                            static_cast<int>(draw(static_cast<std::size_t>(pes))), id,
                            draw(draw(2) == 0 ? 5 * kSegment : 50)});
      ranks.begin(messages);
      ranks.run(draw, true);
      ASSERT_FALSE(HasFailure());
    }
  }
}

}  // namespace
}  // namespace reshard::nvshmem
