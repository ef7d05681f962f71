// SPDX-License-Identifier: Apache-2.0
// Protects: numbers printed for people are right to the digits shown, and sizes are parsed exactly.
#include "reshard/base/number_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace reshard {
namespace {

TEST(Text, bytes_have_three_digits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(9994), "9.99 kB");
  EXPECT_EQ(human_bytes(9996), "10.0 kB");
  EXPECT_EQ(human_bytes(99'960), "100 kB");
  EXPECT_EQ(human_bytes(999'400), "999 kB");
  EXPECT_EQ(human_bytes(999'600), "1.00 MB");
  EXPECT_EQ(human_bytes(470'190'000'000), "470 GB");
  EXPECT_EQ(human_bytes(std::numeric_limits<std::int64_t>::max()), "9223 PB");
}

TEST(Text, models_are_counted_in_billions) {
  EXPECT_EQ(human_count(12), "12");
  EXPECT_EQ(human_count(8'030'261'248), "8.03 B");
  EXPECT_EQ(human_count(235'093'634'560), "235 B");
}

TEST(Text, seconds_change_unit) {
  EXPECT_EQ(human_seconds(0.0000123), "12 us");
  EXPECT_EQ(human_seconds(0.00123), "1.23 ms");
  EXPECT_EQ(human_seconds(0.0456), "45.6 ms");
  EXPECT_EQ(human_seconds(12.345), "12.35 s");
  EXPECT_EQ(human_seconds(125.4), "2 min 5 s");
}

TEST(Text, digits_come_in_groups_of_three) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(plural(1, "rank"), "1 rank");
  EXPECT_EQ(plural(2048, "rank"), "2,048 ranks");
}

TEST(Text, ratios_of_nothing_are_no_numbers) {
  EXPECT_EQ(ratio(3, 2), "1.50x");
  EXPECT_EQ(ratio(3, 0), "-");
  EXPECT_EQ(rate(2'000'000'000, 0.5), "4.00 GB/s");
  EXPECT_EQ(rate(1, 0), "-");
}

TEST(Text, bytes_are_read_with_units) {
  EXPECT_EQ(parse_bytes("65536").value_or(0), 65536);
  EXPECT_EQ(parse_bytes("64MiB").value_or(0), 64 << 20);
  EXPECT_EQ(parse_bytes("64mib").value_or(0), 64 << 20);
  EXPECT_EQ(parse_bytes("1.5 GiB").value_or(0), 3 << 29);
  EXPECT_EQ(parse_bytes("5GB").value_or(0), 5'000'000'000);
  EXPECT_EQ(parse_bytes("1 B").value_or(0), 1);
}

TEST(Text, what_is_no_number_of_bytes_is_refused) {
  for (const char* text : {"", "x", "-1", "0", "0.4", "1e3", "64 MiBs", "MiB", "nan", "inf",
                           "99999999TiB", "1 2", "0x10", "5,000"})
    EXPECT_FALSE(parse_bytes(text).has_value()) << text;
}

}  // namespace
}  // namespace reshard
