// SPDX-License-Identifier: Apache-2.0
// Protects: applying the code of a block to its base gives the block, bit for bit, for elements of
// any size and any share of changes; a code is never much longer than its block; and no code,
// whoever wrote it, is read or applied beyond its end.
#include "reshard/transform/delta/delta_code.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, std::mt19937_64& random) {
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

/// A later version: each element changes with this probability, by a difference of at most
/// `most_bits` bits either way, modulo its size.
Bytes later(const Bytes& base, int width, double share, int most_bits, std::mt19937_64& random) {
  Bytes next = base;
  const auto size = static_cast<std::size_t>(width);
  std::bernoulli_distribution changes(share);
  for (std::size_t at = 0; at < next.size(); at += size) {
    if (!changes(random)) continue;
    std::uint64_t value = 0;
    std::memcpy(&value, next.data() + at, size);
    const std::uint64_t by = (random() >> (64 - most_bits)) + 1;
    value += random() % 2 == 0 ? by : 0 - by;
    std::memcpy(next.data() + at, &value, size);
  }
  return next;
}

Bytes encoded(const Bytes& base, const Bytes& next, int width) {
  DeltaEncoder encoder;
  const auto code = encoder.encode(base, next, width);
  return {code.begin(), code.end()};
}

void expect_round_trip(const Bytes& base, const Bytes& next, int width) {
  const Bytes code = encoded(base, next, width);
  EXPECT_EQ(code.empty(), base == next);
  EXPECT_LE(code.size(), next.size() + 1);
  EXPECT_EQ(code, encoded(base, next, width)) << "not deterministic";
  Bytes block = base;
  const auto applied = apply_delta_code(code, width, block);
  ASSERT_TRUE(applied.has_value()) << applied.error().message;
  EXPECT_EQ(block, next);
}

RC_GTEST_PROP(DeltaCode, applied_to_its_base_is_the_later_version, ()) {
  const int width = 1 << *rc::gen::inRange(0, 4);
  const auto elements = static_cast<std::size_t>(*rc::gen::inRange(1, 3000));
  const double share = *rc::gen::element(0.0, 0.001, 0.02, 0.3, 0.9, 1.0);
  const int most_bits = *rc::gen::inRange(1, width * 8 + 1);
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const Bytes base = random_bytes(elements * static_cast<std::size_t>(width), random);
  expect_round_trip(base, later(base, width, share, most_bits, random), width);
}

TEST(DeltaCode, of_the_largest_block_is_exact_where_one_or_all_elements_change) {
  std::mt19937_64 random(1);
  for (const int width : {1, 2, 4, 8}) {
    const Bytes base = random_bytes(kDeltaBlockBytes, random);
    Bytes next = base;
    next.back() ^= std::byte{0x80};
    expect_round_trip(base, next, width);
    EXPECT_LT(encoded(base, next, width).size(), 24U);
    expect_round_trip(base, random_bytes(kDeltaBlockBytes, random), width);
    for (std::byte& b : next) b = ~b;
    expect_round_trip(base, next, width);
  }
}

TEST(DeltaCode, of_a_block_without_a_base_is_whole) {
  std::mt19937_64 random(2);
  const Bytes next = random_bytes(48, random);
  const Bytes code = encoded({}, next, 8);
  EXPECT_EQ(code.size(), 49U);
  EXPECT_EQ(code[0], static_cast<std::byte>(DeltaForm::whole));
  Bytes block(48);
  ASSERT_TRUE(apply_delta_code(code, 8, block).has_value());
  EXPECT_EQ(block, next);
}

/// The entropy of whether an element changes, and of the sign of its change. Bits per element.
double entropy(double share) {
  return -share * std::log2(share) - (1 - share) * std::log2(1 - share) + share;
}

TEST(DeltaCode, of_changes_by_one_is_near_their_entropy) {
  std::mt19937_64 random(3);
  for (const double share : {0.001, 0.01, 0.05, 0.1}) {
    const Bytes base = random_bytes(kDeltaBlockBytes, random);
    Bytes next = base;
    std::bernoulli_distribution changes(share);
    for (std::size_t at = 0; at < next.size(); at += 2) {
      if (!changes(random)) continue;
      std::uint16_t value = 0;
      std::memcpy(&value, next.data() + at, 2);
      value = static_cast<std::uint16_t>(random() % 2 == 0 ? value + 1 : value - 1);
      std::memcpy(next.data() + at, &value, 2);
    }
    const double bits = 8.0 * static_cast<double>(encoded(base, next, 2).size());
    EXPECT_LT(bits, 1.25 * entropy(share) * static_cast<double>(base.size() / 2)) << share;
  }
}

/// Two versions of a block of packed elements of 4 bits, a share of which changes by one.
std::pair<Bytes, Bytes> packed_versions(double share, std::mt19937_64& random) {
  const Bytes base = random_bytes(kDeltaBlockBytes, random);
  Bytes next = base;
  std::bernoulli_distribution changes(share);
  for (std::byte& both : next)
    for (const unsigned shift : {0U, 4U}) {
      if (!changes(random)) continue;
      const unsigned value = std::to_integer<unsigned>(both) >> shift & 15;
      const unsigned later = (random() % 2 == 0 ? value + 1 : value - 1) & 15;
      both =
          (both & ~static_cast<std::byte>(15U << shift)) | static_cast<std::byte>(later << shift);
    }
  return {base, next};
}

TEST(DeltaCode, of_packed_elements_of_4_bits_is_that_of_nibbles) {
  std::mt19937_64 random(5);
  for (const double share : {0.0001, 0.01, 0.05, 0.5}) {
    const auto [base, next] = packed_versions(share, random);
    expect_round_trip(base, next, 1);
    const Bytes code = encoded(base, next, 1);
    EXPECT_EQ(code[0] == static_cast<std::byte>(DeltaForm::nibbles), share < 0.1) << share;
    const double elements = 2 * static_cast<double>(base.size());
    if (share < 0.1) {
      EXPECT_LT(8.0 * static_cast<double>(code.size()), 1.25 * entropy(share) * elements) << share;
    }
  }
  // Other widths have no nibbles.
  Bytes block(8);
  EXPECT_FALSE(apply_delta_code(Bytes{std::byte{3}, {}, {}, std::byte{1}, {}}, 2, block));
  EXPECT_TRUE(apply_delta_code(Bytes{std::byte{3}, {}, {}, std::byte{1}, {}}, 1, block));
  EXPECT_EQ(block[0], std::byte{15}) << "minus one, modulo 16";
}

TEST(DeltaCode, that_is_damaged_is_refused_or_gives_some_block) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 20'000; ++round) {
    const int width = 1 << random() % 4;
    const Bytes base = random_bytes(static_cast<std::size_t>(width) * (1 + random() % 64), random);
    Bytes code = encoded(base, later(base, width, 0.3, width * 4, random), width);
    if (code.empty()) continue;
    for (std::uint64_t hits = random() % 3 + 1; hits > 0; --hits)
      code[random() % code.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) code.resize(random() % (code.size() + 1));
    // On the heap and exactly as large: sanitizers see what lies outside.
    Bytes block = base;
    code.shrink_to_fit();
    const auto applied = apply_delta_code(code, width, block);
    if (!applied) {
      EXPECT_EQ(applied.error().code, Code::corrupt);
      EXPECT_TRUE(applied.error().message.starts_with("code of a delta: "));
    }
  }
}

struct Hostile {
  std::vector<int> code;
  const char* words;
};

TEST(DeltaCode, that_is_hostile_is_refused_for_its_reason) {
  const Hostile cases[] = {
      {{3, 0, 0}, "unknown form 3"},
      {{4, 0, 0}, "unknown form 4"},
      {{0}, "unknown form 0"},
      {{1}, "ends in its first bytes"},
      {{1, 0, 0, 0x80}, "ends in its first bytes"},
      {{1, 0, 0, 0xff, 0xff, 0xff, 1}, "ends in its first bytes"},
      {{1, 21, 0, 1, 0}, "parameters are 21 and 0"},
      {{1, 0, 16, 1, 0}, "parameters are 0 and 16"},
      {{1, 0, 0, 0}, "0 changes in a block of 4 elements"},
      {{1, 0, 0, 5, 0}, "5 changes in a block of 4 elements"},
      {{1, 0, 0, 1}, "ends inside a change"},
      {{1, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f}, "behind the end of its block"},
      {{1, 0, 0, 2, 0b0111}, "behind the end of its block"},
      {{1, 0, 0, 1, 0, 0}, "bits behind its last change"},
      {{1, 0, 0, 1, 0b100}, "bits behind its last change"},
      // A gap of 0, then an element's 16 bits in full, all of them ones.
      {{1, 0, 0, 1, 0xfe, 0xff, 0xff, 0xff, 0xff, 1}, "does not fit into its element"},
      {{2, 1, 2, 3}, "3 bytes for a block of 8"},
      {{2}, "0 bytes for a block of 8"},
  };
  for (const auto& [numbers, words] : cases) {
    Bytes code, block(8);
    for (const int number : numbers) code.push_back(static_cast<std::byte>(number));
    const auto applied = apply_delta_code(code, 2, block);
    ASSERT_FALSE(applied.has_value()) << words;
    EXPECT_NE(applied.error().message.find(words), std::string::npos)
        << applied.error().message << " instead of " << words;
  }
}

}  // namespace
}  // namespace reshard
