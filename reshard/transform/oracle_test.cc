// SPDX-License-Identifier: Apache-2.0
// Protects: the oracle's content depends on the element alone, is written and compared exactly
// where it lives, and its weights are finite.
#include "reshard/transform/oracle.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "reshard/base/hash.h"
#include "reshard/transform/copy.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

const std::vector<DType> kDTypes = {DType::boolean, DType::f4,   DType::f6_e2m3, DType::f8_e4m3,
                                    DType::i16,     DType::bf16, DType::f16,     DType::f32,
                                    DType::f64,     DType::c64};

Strided whole(const Dims& shape) { return {0, row_major(shape)}; }

std::vector<std::byte> tensor_of(const Oracle& oracle, const Dims& shape, DType dtype) {
  std::vector<std::byte> data(static_cast<std::size_t>(*bytes_of(dtype, volume(shape))));
  RC_ASSERT(oracle_fill(oracle, "t", shape, dtype, Box::whole(shape), whole(shape), data.data())
                .has_value());
  return data;
}

Dims any_shape() {
  Dims shape;
  const int rank = *rc::gen::inRange(1, 5);
  for (int i = 0; i + 1 < rank; ++i) shape.push_back(*rc::gen::inRange<Index>(1, 6));
  shape.push_back(4 * *rc::gen::oneOf(rc::gen::inRange<Index>(1, 40), rc::gen::just<Index>(1500)));
  return shape;
}

Box any_box(const Dims& shape) {
  Box box = Box::whole(shape);
  for (int i = 0; i < shape.size(); ++i) {
    const Index unit = i + 1 == shape.size() ? 4 : 1;
    const Index begin = *rc::gen::inRange<Index>(0, shape[i] / unit);
    box = box.with(i,
                   {begin * unit, *rc::gen::inRange<Index>(begin + 1, shape[i] / unit + 1) * unit});
  }
  return box;
}

/// The box stored on its own with a few elements before it, dimensions in order or (whole bytes)
/// reversed.
Strided any_place(const Box& box, DType dtype) {
  Strided where{4, row_major(box.shape())};
  if (bits(dtype) < 8 || *rc::gen::arbitrary<bool>()) return where;
  Index stride = 1;
  for (int i = 0; i < box.rank(); ++i) {
    where.strides[i] = stride;
    stride *= box[i].size();
  }
  return where;
}

TEST(Oracle, bytes_are_what_the_definition_says) {
  std::vector<std::byte> data(40);
  const Oracle oracle{.seed = 7};
  ASSERT_TRUE(oracle_fill(oracle, "a.weight", {4, 5}, DType::bf16, Box::whole({4, 5}),
                          whole({4, 5}), data.data()));
  const std::uint64_t key = mix64(hash64("a.weight") ^ mix64(7));
  for (std::size_t i = 0; i < data.size(); ++i)
    EXPECT_EQ(std::to_integer<std::uint64_t>(data[i]), mix64(key + i / 8) >> (8 * (i % 8)) & 0xff);
}

RC_GTEST_PROP(Oracle, a_box_holds_the_same_elements_as_the_whole_tensor, ()) {
  const Dims shape = any_shape();
  const DType dtype = *rc::gen::elementOf(kDTypes);
  const Oracle oracle{*rc::gen::element(OracleKind::bits, OracleKind::weights),
                      *rc::gen::arbitrary<std::uint64_t>()};
  const auto tensor = tensor_of(oracle, shape, dtype);
  const Box box = any_box(shape);
  const Strided where = any_place(box, dtype);
  auto expected = random_bytes(*bytes_of(dtype, box.volume() + 8), 1), local = expected;
  run_copy(*make_copy(box.shape(), at(whole(shape), box.origin()), where, bits(dtype)),
           tensor.data(), expected.data(), CopyHint::cached);
  RC_ASSERT(oracle_fill(oracle, "t", shape, dtype, box, where, local.data()).has_value());
  RC_ASSERT(local == expected);
  RC_ASSERT(!oracle_check(oracle, "t", shape, dtype, box, where, local.data())->has_value());
}

RC_GTEST_PROP(Oracle, the_first_wrong_element_is_found_and_named, ()) {
  const Dims shape = any_shape();
  const DType dtype = *rc::gen::element(DType::u8, DType::bf16, DType::f32, DType::f64);
  const Index bytes = bits(dtype) / 8;
  const Oracle oracle{.seed = 3};
  const Box box = any_box(shape);
  const Strided where = any_place(box, dtype);
  std::vector<std::byte> local(static_cast<std::size_t>((box.volume() + 4) * bytes));
  RC_ASSERT(oracle_fill(oracle, "t", shape, dtype, box, where, local.data()).has_value());
  std::set<std::vector<Index>> wrong;
  for (int n = *rc::gen::inRange(0, 4); n > 0; --n) {
    std::vector<Index> index;
    Index offset = where.offset;
    for (int i = 0; i < box.rank(); ++i) {
      index.push_back(*rc::gen::inRange<Index>(box[i].begin(), box[i].end()));
      offset += (index.back() - box[i].begin()) * where.strides[i];
    }
    // Another flip of the same element could undo the first.
    if (!wrong.insert(index).second) continue;
    const Index byte = offset * bytes + *rc::gen::inRange<Index>(0, bytes);
    local[static_cast<std::size_t>(byte)] ^= std::byte{0x40};
  }
  const auto found = *oracle_check(oracle, "t", shape, dtype, box, where, local.data());
  RC_ASSERT(found.has_value() == !wrong.empty());
  if (found) {
    RC_ASSERT(found->index == Dims(std::span<const Index>(*wrong.begin())));
    RC_ASSERT(std::popcount(found->want ^ found->got) == 1);
  }
}

TEST(Oracle, a_wrong_element_is_reported_with_its_bits) {
  const Dims shape{3, 4, 8};
  std::vector<std::byte> data(3 * 4 * 8 * 2);
  ASSERT_TRUE(
      oracle_fill({}, "t", shape, DType::bf16, Box::whole(shape), whole(shape), data.data()));
  const std::size_t element = 1 * 32 + 2 * 8 + 5;
  std::uint16_t want = 0;
  std::memcpy(&want, data.data() + 2 * element, 2);
  data[2 * element + 1] ^= std::byte{0xff};
  data[2 * element + 60] ^= std::byte{1};
  const auto found =
      *oracle_check({}, "t", shape, DType::bf16, Box::whole(shape), whole(shape), data.data());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, (Dims{1, 2, 5}));
  EXPECT_EQ(found->want, want);
  EXPECT_EQ(found->got, want ^ 0xff00);
  EXPECT_EQ(to_string(OracleMismatch{{1, 2}, 0x3f80, 0}), "element [1, 2]: want 0x3f80, got 0x0");
}

TEST(Oracle, transposed_storage_reports_the_first_element_in_canonical_order) {
  const Dims shape{2000, 1500};
  const Strided transposed{0, {1, 2000}};
  std::vector<std::byte> data(static_cast<std::size_t>(volume(shape)) * 2);
  ASSERT_TRUE(oracle_fill({}, "t", shape, DType::bf16, Box::whole(shape), transposed, data.data()));
  const auto flip = [&](std::size_t row, std::size_t column) {
    data[2 * (row + column * 2000)] ^= std::byte{1};
  };
  flip(40, 1400);
  flip(41, 3);
  flip(1999, 0);
  const auto found =
      *oracle_check({}, "t", shape, DType::bf16, Box::whole(shape), transposed, data.data());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->index, (Dims{40, 1400}));
}

template <class T>
void expect_small(DType dtype, double (*value)(T)) {
  const Dims shape{64, 64};
  std::vector<T> data(64 * 64 * 2);
  const Oracle oracle{OracleKind::weights, 5};
  ASSERT_TRUE(oracle_fill(oracle, "t", shape, dtype, Box::whole(shape), whole(shape),
                          reinterpret_cast<std::byte*>(data.data())));
  int negative = 0;
  for (std::size_t i = 0; i < 64 * 64; ++i) {
    const double v = value(data[i]);
    EXPECT_GE(std::abs(v), std::ldexp(1, -11));
    EXPECT_LT(std::abs(v), std::ldexp(1, -7));
    negative += v < 0;
  }
  EXPECT_GT(negative, 1500);
  EXPECT_LT(negative, 2600);
}

TEST(Oracle, weights_are_small_finite_floats_of_both_signs) {
  expect_small<float>(DType::f32, [](float v) { return double{v}; });
  expect_small<float>(DType::c64, [](float v) { return double{v}; });
  expect_small<double>(DType::f64, [](double v) { return v; });
  expect_small<std::uint16_t>(DType::bf16, [](std::uint16_t v) {
    return double{std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16)};
  });
  expect_small<std::uint16_t>(DType::f16, [](std::uint16_t v) {
    const double size = std::ldexp(1024 + (v & 0x3ff), (v >> 10 & 0x1f) - 25);
    return v >> 15 ? -size : size;
  });
}

TEST(Oracle, weights_of_eight_bits_are_no_nan) {
  std::vector<std::uint8_t> data(4096);
  for (DType dtype :
       {DType::f8_e4m3, DType::f8_e5m2, DType::f8_e4m3fnuz, DType::f8_e5m2fnuz, DType::f8_e8m0}) {
    ASSERT_TRUE(oracle_fill({OracleKind::weights, 1}, "t", {4096}, dtype, Box::whole({4096}),
                            whole({4096}), reinterpret_cast<std::byte*>(data.data())));
    for (std::uint8_t v : data) {
      EXPECT_LT(v & 0x7f, dtype == DType::f8_e5m2 ? 0x7c : 0x7f);
      EXPECT_NE(v, 0x80);
    }
  }
}

TEST(Oracle, content_depends_on_name_and_seed) {
  const auto a = [](std::string_view name, std::uint64_t seed) {
    std::vector<std::byte> data(64);
    EXPECT_TRUE(oracle_fill({.seed = seed}, name, {64}, DType::u8, Box::whole({64}), whole({64}),
                            data.data()));
    return data;
  };
  EXPECT_EQ(a("x", 1), a("x", 1));
  EXPECT_NE(a("x", 1), a("y", 1));
  EXPECT_NE(a("x", 1), a("x", 2));
}

TEST(Oracle, elements_inside_bytes_are_an_error) {
  std::byte data[8];
  EXPECT_EQ(oracle_fill({}, "t", {2, 8}, DType::f4, Box{{0, 2}, {1, 4}}, whole({2, 8}), data)
                .error()
                .code,
            Code::unsupported);
  EXPECT_FALSE(oracle_check({}, "t", {3}, DType::f4, Box{{0, 3}}, whole({3}), data));
}

}  // namespace
}  // namespace reshard
