// SPDX-License-Identifier: Apache-2.0
// Protects: the halves of an exchange become the same groups on both sides of each message.
#include "reshard/gpu_transport/nccl/halves.h"

#include <gtest/gtest.h>

#include <vector>

namespace reshard::nccl {
namespace {

Message message(bool sending, int peer, std::uint64_t id, std::size_t size, std::uint32_t turn) {
  Message m;
  m.sending = sending;
  m.peer = Rank{peer};
  m.id = MessageId{id};
  m.size = size;
  m.turn = turn;
  return m;
}

TEST(NcclHalves, equal_segments_of_all_messages_are_one_group_in_the_order_of_turns) {
  std::vector<Message> messages{message(true, 1, 0, 25, 2), message(false, 2, 1, 10, 1),
                                message(true, 1, 2, 11, 0)};
  std::deque<Half> queue;
  append_halves(messages, 7, 10, queue);
  struct Want {
    std::uint64_t id;
    std::size_t segment, size;
  };
  const std::vector<Want> want{{2, 0, 10}, {1, 0, 10}, {0, 0, 10},
                               {2, 1, 1},  {0, 1, 10}, {0, 2, 5}};
  ASSERT_EQ(queue.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(queue[i].id, MessageId{want[i].id});
    EXPECT_EQ(queue[i].segment, want[i].segment);
    EXPECT_EQ(queue[i].size, want[i].size);
    EXPECT_EQ(queue[i].step, 7U);
  }
  EXPECT_TRUE(queue[0].is_grouped_with(queue[2]));
  EXPECT_FALSE(queue[2].is_grouped_with(queue[3]));
}

TEST(NcclHalves, exchanges_follow_each_other) {
  std::deque<Half> queue;
  std::vector<Message> none;
  append_halves(none, 1, 10, queue);
  EXPECT_TRUE(queue.empty());
  std::vector<Message> one{message(true, 1, 0, 10, 0)}, two{message(true, 1, 1, 10, 0)};
  append_halves(one, 2, 10, queue);
  append_halves(two, 3, 10, queue);
  ASSERT_EQ(queue.size(), 2U);
  EXPECT_FALSE(queue[0].is_grouped_with(queue[1]));
}

}  // namespace
}  // namespace reshard::nccl
