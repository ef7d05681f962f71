// SPDX-License-Identifier: Apache-2.0
// Protects: a RingQueue is a queue, however often its content wraps around, grows or is filtered.
#include "reshard/base/containers/ring_queue.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>
#include <memory>

namespace reshard {
namespace {

RC_GTEST_PROP(RingQueue, does_what_a_deque_does, ()) {
  RingQueue<int> queue;
  std::deque<int> reference;
  const auto steps = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 100));
  int next = 0;
  for (const int step : steps) {
    if (step < 60) {
      queue.push_back(next);
      reference.push_back(next++);
    } else if (step < 95 && !reference.empty()) {
      RC_ASSERT(queue.front() == reference.front());
      queue.pop_front();
      reference.pop_front();
    } else if (step >= 95) {
      const auto odd = [](int item) { return item % 2 != 0; };
      RC_ASSERT(queue.erase_if(odd) == std::erase_if(reference, odd));
    }
    RC_ASSERT(queue.size() == reference.size());
    RC_ASSERT(queue.empty() == reference.empty());
  }
  for (; !reference.empty(); reference.pop_front(), queue.pop_front())
    RC_ASSERT(queue.front() == reference.front());
}

TEST(RingQueue, lets_go_of_what_is_taken) {
  RingQueue<std::shared_ptr<int>> queue;
  const auto item = std::make_shared<int>(1);
  for (int i = 0; i < 20; ++i) queue.push_back(item);
  EXPECT_EQ(item.use_count(), 21);
  queue.pop_front();
  EXPECT_EQ(item.use_count(), 20);
  queue.clear();
  EXPECT_EQ(item.use_count(), 1);
}

}  // namespace
}  // namespace reshard
