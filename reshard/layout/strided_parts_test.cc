// SPDX-License-Identifier: Apache-2.0
// Protects: where parts of a tensor begin, which boxes of 4-bit elements can be copied, and copies
// that widen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/layout/strided.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

TEST(Strided, row_major_strides_survive_empty_dimensions) {
  EXPECT_EQ(row_major(Dims{2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(row_major(Dims{2, 0, 4}), (Dims{4, 4, 1}));
  EXPECT_EQ(row_major(Dims{}), Dims{});
}

TEST(Strided, a_part_begins_at_its_first_corner) {
  const Strided whole{7, row_major(Dims{2, 3, 4})};
  EXPECT_EQ(at(whole, Dims{0, 0, 0}), whole);
  EXPECT_EQ(at(whole, Dims{1, 2, 3}), (Strided{7 + 12 + 8 + 3, whole.strides}));
}

TEST(StridedCopy, elements_below_a_byte_are_copied_in_whole_bytes_or_refused) {
  const Strided from{0, Dims{8, 1}}, odd{1, Dims{8, 1}}, uneven{0, Dims{7, 1}};
  const auto whole = make_copy(Dims{2, 4}, from, from, 4);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->bytes(), 4);
  for (const Strided& to : {odd, uneven}) {
    const auto refused = make_copy(Dims{2, 4}, from, to, 4);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::unsupported);
    EXPECT_THAT(refused.error().message,
                HasSubstr("shape [2, 4] with 4-bit elements begins or ends inside a byte"));
  }
  EXPECT_FALSE(make_copy(Dims{2, 3}, from, from, 4));
}

TEST(StridedCopy, a_widening_copy_counts_each_side_in_its_own_bytes) {
  const auto copy = make_widening_copy(Dims{2, 3}, {1, Dims{8, 1}}, {0, Dims{3, 1}}, 2, 4);
  EXPECT_EQ(copy.src_offset, 2);
  EXPECT_EQ(copy.bytes(), 24);
  EXPECT_EQ(copy.source_bytes(copy.run_bytes), 6);
  const auto back = reversed(copy);
  EXPECT_EQ(back.bytes(), 12);
  EXPECT_EQ(back.src_width, 4);
  EXPECT_EQ(back.dst_width, 2);
  EXPECT_EQ(reversed(back), copy);
  EXPECT_EQ(make_widening_copy(Dims{2, 3}, {1, Dims{8, 1}}, {0, Dims{3, 1}}, 2, 2),
            *make_copy(Dims{2, 3}, {1, Dims{8, 1}}, {0, Dims{3, 1}}, 16));
}

TEST(StridedCopy, prints_its_loops) {
  EXPECT_EQ(to_string(*make_copy(Dims{2, 3}, {1, Dims{8, 1}}, {0, Dims{3, 1}}, 16)),
            "2->0 run 6 x 2(+16,+6)");
}

}  // namespace
}  // namespace reshard
