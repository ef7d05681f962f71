// SPDX-License-Identifier: Apache-2.0
// Protects: reserved addresses are of one owner, cost no memory, and cannot be touched unnoticed.
#include "reshard/memory/address_range.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace reshard {
namespace {

/// Sizes, as powers of two: more than a machine's memory; so much that only a few ranges fit.
#ifdef __SANITIZE_THREAD__
constexpr int kBig = 37, kHuge = 40;  // ThreadSanitizer leaves a program 1.5 TiB of addresses.
#else
constexpr int kBig = 42, kHuge = 44;
#endif

TEST(AddressRange, has_more_bytes_than_the_machine_has_memory) {
  std::set<const std::byte*> begins;
  std::vector<AddressRange> ranges;
  for (int i = 0; i < 8; ++i) {
    auto range = AddressRange::reserve(Index{1} << kBig);
    ASSERT_TRUE(range) << range.error().message;
    begins.insert(range->begin());
    ranges.push_back(std::move(*range));
  }
  EXPECT_EQ(begins.size(), 8U);
}

TEST(AddressRange, gives_addresses_back) {
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(AddressRange::reserve(Index{1} << kHuge));
}

TEST(AddressRange, may_be_empty) {
  const auto range = AddressRange::reserve(0);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->begin(), nullptr);
  EXPECT_EQ(range->size(), 0);
}

TEST(AddressRange, refuses_absurd_sizes) {
  EXPECT_EQ(AddressRange::reserve(-1).error().code, Code::invalid_argument);
  EXPECT_EQ(AddressRange::reserve(Index{1} << 62).error().code, Code::invalid_argument);
}

TEST(AddressRange, moves) {
  auto first = *AddressRange::reserve(4096);
  std::byte* const begin = first.begin();
  const AddressRange second = std::move(first);
  EXPECT_EQ(second.begin(), begin);
  EXPECT_EQ(second.size(), 4096);
}

TEST(AddressRangeDeathTest, is_not_to_be_touched) {
  const auto range = *AddressRange::reserve(4096);
  EXPECT_DEATH(const_cast<volatile std::byte&>(*range.begin()) = std::byte{1}, "");
}

}  // namespace
}  // namespace reshard
