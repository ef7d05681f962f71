// SPDX-License-Identifier: Apache-2.0
// Protects: merged weights are W + scale * B A, whichever part of a tensor is made, whatever the
// dtypes of weight and factors, and whichever way the weight is stored.
#include "reshard/transform/merge.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "reshard/transform/convert.h"

namespace reshard {
namespace {

/// A matrix of small integers, which all dtypes hold, and whose products are exact in F32.
struct Numbers {
  Index rows, cols;
  DType dtype;
  std::vector<float> values;
  std::vector<std::byte> bytes;

  Numbers(Index r, Index c, DType d, std::mt19937& random) : rows(r), cols(c), dtype(d) {
    for (Index i = 0; i < r * c; ++i) values.push_back(static_cast<float>(random() % 9) - 4);
    bytes.resize(static_cast<std::size_t>(r * c * bits(d) / 8));
    const auto* from = reinterpret_cast<const std::byte*>(values.data());
    if (d == DType::f32)
      std::memcpy(bytes.data(), from, bytes.size());
    else
      convert_values({{DType::f32, ValueMap::identity}, {d, ValueMap::identity}}, from,
                     bytes.data(), r * c);
  }
  float at(Index r, Index c) const { return values[static_cast<std::size_t>(r * cols + c)]; }
  StoredValues stored() const { return {bytes.data(), dtype}; }
};

DType any_dtype(std::mt19937& random) {
  constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16};
  return kAll[random() % 3];
}

std::vector<float> merged(const MergedTensor& tensor, Index first, Index count, DType to) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * bits(to) / 8));
  merge(tensor, first, count, to, bytes.data());
  std::vector<float> values(static_cast<std::size_t>(count));
  auto* const out = reinterpret_cast<std::byte*>(values.data());
  if (to == DType::f32)
    std::memcpy(out, bytes.data(), bytes.size());
  else
    convert_values({{to, ValueMap::identity}, {DType::f32, ValueMap::identity}}, bytes.data(), out,
                   count);
  return values;
}

TEST(Merge, adds_every_change_to_any_part_of_a_weight) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto up_to = [&](Index n) { return static_cast<Index>(random()) % n + 1; };
    const Index rows = up_to(9), cols = up_to(40);
    const Numbers weight(rows, cols, any_dtype(random), random);
    MergedTensor tensor{rows, cols, weight.stored()};
    std::vector<float> expected = weight.values;
    std::vector<Numbers> factors;
    factors.reserve(6);
    for (Index n = up_to(3); n > 0; --n) {
      const bool transposed = random() % 2 == 0;
      const Index out = transposed ? cols : rows, in = transposed ? rows : cols, rank = up_to(5);
      const Numbers& a = factors.emplace_back(rank, in, any_dtype(random), random);
      const Numbers& b = factors.emplace_back(out, rank, any_dtype(random), random);
      const float scale = random() % 2 == 0 ? 0.5F : -2;
      tensor.changes.push_back({a.stored(), b.stored(), rank, scale, transposed});
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c)
          for (Index k = 0; k < rank; ++k)
            expected[static_cast<std::size_t>(r * cols + c)] +=
                scale * (transposed ? b.at(c, k) * a.at(k, r) : b.at(r, k) * a.at(k, c));
    }
    const Index first = up_to(rows * cols) - 1, count = up_to(rows * cols - first);
    const std::vector<float> part(expected.begin() + first, expected.begin() + first + count);
    EXPECT_EQ(merged(tensor, first, count, DType::f32), part);
  }
}

TEST(Merge, rounds_the_sum_once) {
  // 256 + 1 + 0.5 in BF16, whose neighbours there are 256 and 258: 1 alone is rounded to 256.
  const float weight = 256, a[] = {1, 0.5F}, b[] = {1, 1};
  const auto floats = [](const float* at) {
    return StoredValues{reinterpret_cast<const std::byte*>(at), DType::f32};
  };
  MergedTensor tensor{1, 1, floats(&weight)};
  tensor.changes = {{floats(a), floats(b), 1, 1, false}, {floats(a + 1), floats(b), 1, 1, false}};
  EXPECT_EQ(merged(tensor, 0, 1, DType::bf16), std::vector<float>{258});
  tensor.changes.pop_back();
  EXPECT_EQ(merged(tensor, 0, 1, DType::bf16), std::vector<float>{256});
}

TEST(Merge, adds_to_decoded_weights) {
  // Two codes of 8 bits, 3 and -1, with the scale 0.5.
  const std::int8_t codes[] = {3, -1};
  const float scale = 0.5F, a[] = {2, 4}, b = 0.25F;
  CodedMatrix m{.rows = 1, .cols = 2, .codes = {}};
  m.codes = {.words = reinterpret_cast<const std::byte*>(codes),
             .bits = 8,
             .word_bytes = 1,
             .is_signed = true,
             .row_stride = 2,
             .col_stride = 1};
  m.scales = reinterpret_cast<const std::byte*>(&scale);
  m.scale_dtype = DType::f32;
  m.group_cols = 2;
  MergedTensor tensor{1, 2, CodedTensor(m)};
  tensor.changes = {{{reinterpret_cast<const std::byte*>(a), DType::f32},
                     {reinterpret_cast<const std::byte*>(&b), DType::f32},
                     1,
                     1,
                     false}};
  EXPECT_EQ(merged(tensor, 0, 2, DType::bf16), (std::vector<float>{2, 0.5F}));
}

TEST(Merge, replaces_a_weight_in_its_dtype) {
  const float values[] = {1, 2, 257};
  const MergedTensor tensor{1, 3,
                            StoredValues{reinterpret_cast<const std::byte*>(values), DType::f32}};
  EXPECT_EQ(merged(tensor, 1, 2, DType::bf16), (std::vector<float>{2, 256}));
}

}  // namespace
}  // namespace reshard
