// SPDX-License-Identifier: Apache-2.0
// Protects: host memory is zero, aligned, owned once, and a size that cannot be had is an error.
#include "reshard/memory/host_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace reshard {
namespace {

using testing::HasSubstr;

bool all_zero(const HostBuffer& buffer) {
  return std::ranges::all_of(buffer.bytes(), [](std::byte b) { return b == std::byte{0}; });
}

Index misalignment(const HostBuffer& buffer, Index unit) {
  return static_cast<Index>(reinterpret_cast<std::uintptr_t>(buffer.data()) %
                            static_cast<std::uintptr_t>(unit));
}

TEST(HostBuffer, bytes_are_zero_aligned_and_writable_at_every_size) {
  for (Index size :
       {Index{1}, Index{63}, Index{4097}, kHugePage - 1, kHugePage, 3 * kHugePage + 5}) {
    for (const bool shared : {false, true, true}) {
      auto buffer = HostBuffer::allocate(size, {.shared = shared});
      ASSERT_TRUE(buffer) << buffer.error().message;
      EXPECT_EQ(buffer->size(), size);
      EXPECT_TRUE(all_zero(*buffer));
      EXPECT_EQ(misalignment(*buffer, size < kHugePage ? 64 : kHugePage), 0);
      std::ranges::fill(buffer->bytes(), std::byte{7});
      EXPECT_EQ(buffer->bytes().back(), std::byte{7});
    }
  }
}

TEST(HostBuffer, prefaulting_leaves_zero_bytes_whatever_the_number_of_threads) {
  for (int threads : {1, 2, 5, 64}) {
    auto buffer = HostBuffer::allocate(5 * kHugePage + 4097, {.prefault_threads = threads});
    ASSERT_TRUE(buffer);
    EXPECT_TRUE(all_zero(*buffer));
  }
}

TEST(HostBuffer, an_empty_buffer_is_fine) {
  auto buffer = HostBuffer::allocate(0, {.prefault_threads = 3});
  ASSERT_TRUE(buffer);
  EXPECT_TRUE(buffer->empty());
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_TRUE(buffer->bytes().empty());
}

TEST(HostBuffer, moving_hands_over_the_same_memory) {
  auto first = *HostBuffer::allocate(kHugePage);
  std::byte* const data = first.data();
  data[0] = std::byte{9};
  HostBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_TRUE(first.empty());
  HostBuffer third = *HostBuffer::allocate(100);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), kHugePage);
  EXPECT_EQ(third.data()[0], std::byte{9});
}

TEST(HostBuffer, a_size_that_cannot_be_had_is_an_error_that_names_it) {
  const auto negative = HostBuffer::allocate(-1);
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().code, Code::invalid_argument);
  EXPECT_THAT(negative.error().message, HasSubstr("-1"));
  EXPECT_FALSE(HostBuffer::allocate(std::numeric_limits<Index>::max()));
  const auto huge = HostBuffer::allocate(Index{1} << 55);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, Code::io);
  EXPECT_THAT(huge.error().message, HasSubstr("36028797018963968"));
  EXPECT_FALSE(HostBuffer::allocate(1, {.prefault_threads = -1}));
}

}  // namespace
}  // namespace reshard
