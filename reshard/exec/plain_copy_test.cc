// SPDX-License-Identifier: Apache-2.0
// Protects: every way of copying that the ceiling is the best of copies all bytes; the ceiling is
// measured whenever there are bytes to copy.
#include "reshard/exec/plain_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

TEST(PlainCopy, every_way_copies_every_byte_and_no_other) {
  for (const PlainWay& way : plain_ways())
    for (const std::size_t offset : {0U, 1U, 63U})
      for (const std::size_t bytes : {0U, 1U, 64U, 200U, 4097U, 100'000U}) {
        std::vector<std::byte> from(bytes + 128), to(bytes + 128);
        std::uint64_t state = bytes + offset;
        for (std::byte& b : from) b = std::byte(state = mix64(state));
        auto expected = to;
        std::copy_n(from.begin() + 1, bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(offset));
        way.copy(to.data() + offset, from.data() + 1, static_cast<Index>(bytes));
        EXPECT_EQ(to, expected) << way.name << ", " << bytes << " bytes at " << offset;
      }
}

TEST(PlainCopy, takes_time_where_there_are_bytes_and_none_where_there_are_none) {
  EXPECT_GT(plain_copy_seconds(1 << 20, 1 << 20, 2), 0);
  // Fewer distinct bytes than are written, also without a whole chunk.
  EXPECT_GT(plain_copy_seconds((3 << 20) + 5, 1000, 1), 0);
  EXPECT_EQ(plain_copy_seconds(0, 0, 1), 0);
}

TEST(PlainCopy, of_a_group_is_the_same_on_all_ranks) {
  for (const Index bytes : {Index{0}, Index{1} << 20}) {
    auto group = InprocGroup::create(3);
    ASSERT_TRUE(group);
    std::vector<double> seconds(3, -1);
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < 3; ++r)
        ranks.emplace_back([&, r] {
          const auto control = group->control(Rank(r));
          ASSERT_TRUE(control);
          // Rank 0 has nothing of its own.
          const auto all = plain_copy_seconds(**control, r == 0 ? 0 : r * bytes, 1,
                                              Deadline::after(std::chrono::seconds(60)));
          ASSERT_TRUE(all);
          seconds[static_cast<std::size_t>(r)] = *all;
        });
    }
    EXPECT_EQ(seconds[0] > 0, bytes > 0);
    EXPECT_EQ(seconds, std::vector<double>(3, seconds[0]));
  }
}

}  // namespace
}  // namespace reshard
