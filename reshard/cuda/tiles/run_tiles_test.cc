// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/tiles/run_tiles.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace reshard::cuda {
namespace {

TEST(Divisor, DividesSmallNumbers) {
  for (std::uint32_t d = 1; d < 300; ++d)
    for (std::uint32_t n = 0; n < 3000; ++n)
      ASSERT_EQ(quotient(n, divisor(d)), n / d) << n << "/" << d;
}

RC_GTEST_PROP(Divisor, DividesAllNumbersBelow2To31, ()) {
  constexpr std::uint32_t kEnd = std::uint32_t{1} << 31;
  const auto d = *rc::gen::oneOf(rc::gen::inRange<std::uint32_t>(1, kEnd),
                                 rc::gen::inRange<std::uint32_t>(1, 70000));
  const auto times = *rc::gen::inRange<std::uint32_t>(0, (kEnd - 1) / d);
  // Next to a multiple, where a wrong multiplier shows first.
  for (const std::uint32_t n : {times * d, times * d + d - 1, kEnd - 1})
    if (n < kEnd) RC_ASSERT(quotient(n, divisor(d)) == n / d);
}

TEST(RunTiles, SlicesShareTheThreadsOfABlock) {
  EXPECT_EQ(threads_of_slice(1, 256), 256U);
  EXPECT_EQ(threads_of_slice(2, 256), 128U);
  EXPECT_EQ(threads_of_slice(3, 256), 64U);
  EXPECT_EQ(threads_of_slice(16, 256), 16U);
  EXPECT_EQ(threads_of_slice(500, 256), 16U);
  EXPECT_EQ(threads_of_slice(500, 3), 3U);
}

}  // namespace
}  // namespace reshard::cuda
