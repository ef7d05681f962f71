// SPDX-License-Identifier: Apache-2.0
// Protects: the CRC-32 is that of zip archives, also of bytes that come in pieces in any order.
#include "reshard/io/dcp/crc32.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace reshard::dcp {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Crc32Test, IsThatOfZipArchives) {
  EXPECT_EQ(crc32(bytes_of("")), 0U);
  EXPECT_EQ(crc32(bytes_of("a")), 0xe8b7be43U);
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32(bytes_of("The quick brown fox jumps over the lazy dog")), 0x414fa339U);
}

TEST(Crc32Test, PiecesInAnyOrderHaveTheSumOfTheWhole) {
  std::mt19937 random(1);
  for (const std::size_t size : {0U, 1U, 7U, 64U, 1000U}) {
    std::string text(size, '\0');
    for (char& c : text) c = static_cast<char>(random());
    std::vector<std::size_t> cuts = {0, size};
    for (int i = 0; i < 5; ++i) cuts.push_back(random() % (size + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::size_t> order(cuts.size() - 1);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    PiecewiseCrc32 sum;
    for (const std::size_t i : order)
      sum.add(static_cast<std::int64_t>(cuts[i]),
              bytes_of(text).subspan(cuts[i], cuts[i + 1] - cuts[i]));
    EXPECT_EQ(sum.value(), crc32(bytes_of(text))) << size;
  }
}

}  // namespace
}  // namespace reshard::dcp
