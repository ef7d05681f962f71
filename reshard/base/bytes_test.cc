// SPDX-License-Identifier: Apache-2.0
// Protects: written values are read back, and no input is read out of bounds.
#include "reshard/base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace reshard {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::int64_t kLeastSigned = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxSigned = std::numeric_limits<std::int64_t>::max();

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

TEST(Bytes, come_back_as_they_were) {
  ByteWriter w;
  const std::uint64_t numbers[] = {0, 1, 127, 128, 16383, 16384, kMax};
  const std::int64_t signed_numbers[] = {0, -1, 1, -64, 64, kLeastSigned, kMaxSigned};
  for (auto n : numbers) w.number(n);
  for (auto n : signed_numbers) w.signed_number(n);
  w.text("name");
  const auto written = std::move(w).finish();
  ByteReader r(written, "x");
  for (auto n : numbers) EXPECT_EQ(r.number(kMax, "n"), n);
  for (auto n : signed_numbers) EXPECT_EQ(r.signed_number(kLeastSigned, kMaxSigned, "n"), n);
  EXPECT_EQ(r.text(4, "t"), "name");
  EXPECT_TRUE(r.finish().has_value());
}

TEST(Bytes, small_numbers_take_one_byte) {
  ByteWriter w;
  w.number(127);
  w.signed_number(-64);
  EXPECT_EQ(std::move(w).finish(), bytes({127, 127}));
}

TEST(Bytes, errors_stick_and_name_the_place) {
  const auto said = [](const std::vector<std::byte>& input, auto read) {
    ByteReader r(input, "x");
    read(r);
    const auto end = r.finish();
    EXPECT_FALSE(end.has_value());
    return end ? "" : end.error().message;
  };
  EXPECT_THAT(said(bytes({0x80}), [](ByteReader& r) { r.number(9, "n"); }),
              HasSubstr("x: byte 1: ends inside n"));
  EXPECT_THAT(said(bytes({10}), [](ByteReader& r) { EXPECT_EQ(r.number(9, "n"), 0u); }),
              HasSubstr("n is 10, at most 9"));
  EXPECT_THAT(said(bytes({1, 2}), [](ByteReader& r) { r.number(9, "n"); }),
              HasSubstr("1 bytes after the end"));
  EXPECT_THAT(said(bytes({5, 'a'}), [](ByteReader& r) { EXPECT_EQ(r.text(9, "t"), ""); }),
              HasSubstr("ends inside t"));
  EXPECT_THAT(said(bytes({3, 1, 1}), [](ByteReader& r) { EXPECT_EQ(r.count(1, "c"), 0u); }),
              HasSubstr("c is 3, at most 2"));
  EXPECT_THAT(said(bytes({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2}),
                   [](ByteReader& r) { r.number(kMax, "n"); }),
              HasSubstr("does not fit into 64 bits"));
  EXPECT_THAT(said(bytes({9, 1}),
                   [](ByteReader& r) {
                     r.number(1, "first");
                     EXPECT_EQ(r.number(9, "second"), 0u);
                   }),
              HasSubstr("first is 9"));
}

}  // namespace
}  // namespace reshard
