// SPDX-License-Identifier: Apache-2.0
// Protects: the parts of symmetric memory do not overlap and stay within what was asked for.
#include "reshard/gpu_transport/nvshmem/staging.h"

#include <gmock/gmock.h>

#include <map>

namespace reshard::nvshmem {
namespace {

TEST(NvshmemStaging, parts_follow_each_other_and_fill_what_was_asked_for) {
  for (const int pes : {1, 2, 3, 8, 64, 1000}) {
    for (const std::size_t bytes : {std::size_t{40} << 20, (std::size_t{256} << 20) + 12345}) {
      const auto staging = Staging::divide(bytes, pes);
      ASSERT_TRUE(staging);
      std::map<std::size_t, std::size_t> parts;  // size by offset
      for (int peer = 0; peer < pes; ++peer) {
        parts[staging->words(peer)] = sizeof(PeerWords);
        for (int slot = 0; slot < kSlots; ++slot) {
          parts[staging->incoming(peer, slot)] = staging->slot_bytes();
          parts[staging->outgoing(peer, slot)] = staging->slot_bytes();
        }
      }
      EXPECT_EQ(parts.size(), static_cast<std::size_t>(pes) * (1 + 2 * kSlots));
      std::size_t end = 0;
      for (const auto& [offset, size] : parts) {
        EXPECT_GE(offset, end);
        EXPECT_LT(offset, end + 512);
        end = offset + size;
      }
      EXPECT_EQ(end, staging->total_bytes());
      EXPECT_LE(end, bytes);
      EXPECT_GT(end + static_cast<std::size_t>(pes) * 2 * kSlots * 512 + 512, bytes);
    }
  }
}

TEST(NvshmemStaging, a_segment_has_at_most_256_MiB) {
  const auto staging = Staging::divide(std::size_t{1} << 40, 2);
  ASSERT_TRUE(staging);
  EXPECT_EQ(staging->slot_bytes(), std::size_t{256} << 20);
}

TEST(NvshmemStaging, too_few_bytes_are_refused_with_the_number_that_would_do) {
  const auto few = Staging::divide(100'000, 16);
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code, Code::invalid_argument);
  EXPECT_THAT(few.error().message, testing::HasSubstr("16 ranks: they need 264192"));
  EXPECT_TRUE(Staging::divide(264192, 16));
}

}  // namespace
}  // namespace reshard::nvshmem
