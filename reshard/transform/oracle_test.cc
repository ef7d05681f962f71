// SPDX-License-Identifier: Apache-2.0
// Protects: an element's oracle value does not depend on the box or the place it is written
// through.
#include "reshard/transform/oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace reshard {
namespace {

RC_GTEST_PROP(Oracle, boxes_of_one_tensor_agree, ()) {
  const DType dtype = *rc::gen::element(DType::u8, DType::bf16, DType::f32, DType::f64);
  const Dims shape{*rc::gen::inRange<Index>(1, 6), *rc::gen::inRange<Index>(1, 40)};
  const auto kind = *rc::gen::element(OracleKind::bits, OracleKind::weights);
  const Oracle oracle("t", shape, dtype, 7, kind);
  const auto width = static_cast<std::size_t>(bits(dtype) / 8);
  std::vector<std::byte> whole(static_cast<std::size_t>(volume(shape)) * width),
      column(whole.size());
  oracle.fill(Box::whole(shape), {0, row_major(shape)}, whole.data());
  const Index r = *rc::gen::inRange<Index>(0, shape[0]), c = *rc::gen::inRange<Index>(0, shape[1]);
  const Box box{{r, shape[0]}, {c, shape[1]}};
  // Column-major storage.
  oracle.fill(box, {0, {1, shape[0] - r}}, column.data());
  for (Index i = r; i < shape[0]; ++i)
    for (Index j = c; j < shape[1]; ++j)
      RC_ASSERT(std::memcmp(whole.data() + static_cast<std::size_t>(i * shape[1] + j) * width,
                            column.data() +
                                static_cast<std::size_t>((j - c) * (shape[0] - r) + i - r) * width,
                            width) == 0);
  RC_ASSERT(!oracle.check(box, {0, {1, shape[0] - r}}, column.data()));
  RC_ASSERT(!oracle.check(Box::whole(shape), {0, row_major(shape)}, whole.data()));
}

TEST(Oracle, check_names_the_first_wrong_element) {
  const Dims shape{3, 5000};
  const Oracle oracle("t", shape, DType::u8, 1, OracleKind::bits);
  std::vector<std::byte> data(15000);
  oracle.fill(Box::whole(shape), {0, row_major(shape)}, data.data());
  data[2 * 5000 + 4321] ^= std::byte{1};
  data[2 * 5000 + 4999] ^= std::byte{1};
  EXPECT_THAT(oracle.check(Box::whole(shape), {0, row_major(shape)}, data.data()).value(),
              ::testing::StartsWith("[2, 4321] is 0x"));
}

TEST(Oracle, names_and_seeds_give_other_values) {
  const auto first = [](const char* name, std::uint64_t seed) {
    std::uint64_t word = 0;
    Oracle(name, {1}, DType::u64, seed, OracleKind::bits)
        .fill(Box{{0, 1}}, {0, {1}}, reinterpret_cast<std::byte*>(&word));
    return word;
  };
  EXPECT_NE(first("a", 1), first("b", 1));
  EXPECT_NE(first("a", 1), first("a", 2));
}

TEST(Oracle, weights_are_small_floats_of_both_signs) {
  std::vector<float> data(10000);
  Oracle("w", {10000}, DType::f32, 3, OracleKind::weights)
      .fill(Box{{0, 10000}}, {0, {1}}, reinterpret_cast<std::byte*>(data.data()));
  int negative = 0;
  for (float x : data) {
    EXPECT_GE(std::abs(x), std::ldexp(1.0f, -9));
    EXPECT_LT(std::abs(x), std::ldexp(1.0f, -5));
    negative += x < 0;
  }
  EXPECT_NEAR(negative, 5000, 300);
}

TEST(Oracle, sub_byte_elements_are_seen_as_bytes) {
  const Dims shape{4, 8};
  const Oracle oracle("t", shape, DType::f4, 1, OracleKind::bits);
  std::vector<std::byte> data(16), part(8);
  oracle.fill(Box::whole(shape), {0, row_major(shape)}, data.data());
  const Box right{{0, 4}, {4, 8}};
  oracle.fill(right, {0, {4, 1}}, part.data());
  EXPECT_EQ(part[2], data[6]);
  EXPECT_EQ(part[7], data[15]);
  EXPECT_FALSE(oracle.check(right, {4, {8, 1}}, data.data()));
}

}  // namespace
}  // namespace reshard
