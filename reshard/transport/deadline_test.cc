// SPDX-License-Identifier: Apache-2.0
// Protects: no duration, however extreme, overflows into a wrong deadline.
#include "reshard/transport/deadline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace reshard {
namespace {

using Seconds = std::chrono::duration<double>;

TEST(Deadline, never_is_later_than_any_other_and_does_not_expire) {
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_FALSE(Deadline::never().expired());
  const Deadline hour = Deadline::after(std::chrono::hours(1));
  EXPECT_EQ(std::min(hour, Deadline::never()), hour);
  EXPECT_FALSE(hour.expired());
}

TEST(Deadline, zero_negative_and_not_a_number_are_now) {
  for (const double s : {0.0, -1.0, -1e300, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_TRUE(Deadline::after(Seconds(s)).expired()) << s;
}

TEST(Deadline, more_than_the_clock_can_count_is_never) {
  for (const double s : {1e10, 1e300, std::numeric_limits<double>::infinity()})
    EXPECT_TRUE(Deadline::after(Seconds(s)).is_never()) << s;
  EXPECT_FALSE(Deadline::after(Seconds(1e9)).is_never());
}

}  // namespace
}  // namespace reshard
