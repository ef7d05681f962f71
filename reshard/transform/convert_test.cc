// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/convert.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

constexpr StoredForm kF32{DType::f32}, kBf16{DType::bf16}, kF16{DType::f16};

/// All 65536 halves.
std::vector<std::byte> all_halves() {
  std::vector<std::byte> bytes(131072);
  for (unsigned i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

std::vector<std::byte> converted(const Conversion& c, const std::vector<std::byte>& src) {
  const Index n = static_cast<Index>(src.size()) * 8 / bits(c.from.dtype);
  std::vector<std::byte> out(static_cast<std::size_t>(n * bits(c.to.dtype) / 8));
  convert_values(c, src.data(), out.data(), n);
  // Streaming stores give the same bytes, wherever the destination begins.
  for (std::size_t shift : {0U, 1U, 2U, 6U, 64U}) {
    std::vector<std::byte> streamed(out.size() + shift);
    convert_values(c, src.data(), streamed.data() + shift, n, CopyHint::streaming);
    copy_fence();
    EXPECT_TRUE(
        std::equal(out.begin(), out.end(), streamed.begin() + static_cast<std::ptrdiff_t>(shift)));
  }
  return out;
}

float float_at(const std::vector<std::byte>& bytes, std::size_t i) {
  float value = 0;
  std::memcpy(&value, bytes.data() + 4 * i, 4);
  return value;
}

std::uint16_t half_at(const std::vector<std::byte>& bytes, std::size_t i) {
  std::uint16_t value = 0;
  std::memcpy(&value, bytes.data() + 2 * i, 2);
  return value;
}

/// The value of a half by the definition of its format.
double by_definition(std::uint16_t half, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = half >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = half & ((1 << mantissa_bits) - 1);
  const double sign = half >> 15 != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

TEST(Convert, every_half_widens_to_its_value) {
  for (const KernelChoice choice : kernel_choices()) {
    const KernelScope scope(choice);
    for (const auto& [form, exponent_bits] : {std::pair(kBf16, 8), std::pair(kF16, 5)}) {
      const auto wide = converted({form, kF32}, all_halves());
      for (unsigned i = 0; i < 65536; ++i) {
        const double want = by_definition(static_cast<std::uint16_t>(i), exponent_bits);
        const double got = float_at(wide, i);
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got)
                                     : got == want && std::signbit(got) == std::signbit(want))
            << to_string(form) << " " << i;
      }
    }
  }
}

TEST(Convert, every_bf16_comes_back_with_its_bits) {
  EXPECT_EQ(converted({kF32, kBf16}, converted({kBf16, kF32}, all_halves())), all_halves());
}

TEST(Convert, every_f16_that_is_a_number_comes_back_with_its_bits) {
  const auto back = converted({kF32, kF16}, converted({kF16, kF32}, all_halves()));
  for (unsigned i = 0; i < 65536; ++i) {
    const bool nan = (i & 0x7c00U) == 0x7c00U && (i & 0x3ffU) != 0;
    ASSERT_EQ(half_at(back, i), nan ? i | 0x200U : i);
  }
}

/// The two halves around a value and what lies between decide: nearest, ties to even.
void expect_nearest(float value, std::uint16_t got, int exponent_bits) {
  const double have = by_definition(got, exponent_bits);
  const auto magnitude = static_cast<std::uint16_t>(got & 0x7fffU);
  for (const int step : {-1, 1}) {
    if (magnitude == 0 && step < 0) continue;
    const auto other =
        static_cast<std::uint16_t>((got & 0x8000U) | static_cast<unsigned>(magnitude + step));
    double near = by_definition(other, exponent_bits);
    // Infinity stands for the number one step above the largest.
    if (std::isinf(near)) near = std::ldexp(near < 0 ? -1 : 1, 1 << (exponent_bits - 1));
    double mine = have;
    if (std::isinf(mine)) mine = std::ldexp(mine < 0 ? -1 : 1, 1 << (exponent_bits - 1));
    if (std::isnan(near)) continue;
    const double distance = std::abs(value - mine), others = std::abs(value - near);
    RC_ASSERT(distance < others || (distance == others && (got & 1U) == 0));
  }
}

RC_GTEST_PROP(Convert, floats_round_to_nearest_even, ()) {
  // Bits around every place where rounding changes: few low bits, or a tie and its neighbours.
  const auto bits = *rc::gen::arbitrary<std::uint32_t>();
  const int cut = *rc::gen::element(0, 12, 13, 15, 16);
  const int around = *rc::gen::inRange(-1, 2);
  const auto value =
      std::bit_cast<float>((bits >> cut << cut) + static_cast<std::uint32_t>(around));
  RC_PRE(!std::isnan(value) && !std::isinf(value));
  expect_nearest(value, to_bf16(value), 8);
  if (std::abs(value) < 131072) expect_nearest(value, to_f16(value), 5);
}

RC_GTEST_PROP(Convert, all_kernels_give_the_same_bits, ()) {
  const auto n = *rc::gen::inRange<Index>(0, 2000);
  const auto from = *rc::gen::element(kF32, kBf16, kF16), to = *rc::gen::element(kF32, kBf16, kF16);
  const auto src = random_bytes(n * bits(from.dtype) / 8, *rc::gen::arbitrary<std::uint64_t>());
  std::vector<std::vector<std::byte>> results;
  for (const KernelChoice choice : kernel_choices()) {
    const KernelScope scope(choice);
    results.push_back(converted({from, to}, src));
    RC_ASSERT(results.back() == results.front());
  }
}

TEST(Convert, maps_are_what_they_say) {
  const float x[] = {-2.5F, 0.0F, 0.75F, 3.0F};
  std::vector<std::byte> src(sizeof x);
  std::memcpy(src.data(), x, sizeof x);
  const auto through = [&](ValueMap map) { return converted({kF32, {DType::f32, map}}, src); };
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(float_at(through(ValueMap::negated_exp), i), -std::exp(x[i]));
    EXPECT_EQ(float_at(through(ValueMap::plus_one), i), x[i] + 1);
    EXPECT_EQ(float_at(through(ValueMap::minus_one), i), x[i] - 1);
  }
}

TEST(Convert, what_a_map_did_is_undone) {
  // A_log in BF16, kept as -exp(A_log) in F32: the nearest BF16 of the logarithm is what it was.
  std::vector<std::byte> src;
  for (unsigned i = 0x3c00; i < 0x4180; ++i) {  // 2^-7 to 16
    const auto half = static_cast<std::uint16_t>(i);
    src.insert(src.end(), {std::byte(half & 0xff), std::byte(half >> 8)});
  }
  const StoredForm a{DType::f32, ValueMap::negated_exp};
  EXPECT_EQ(converted({a, kBf16}, converted({kBf16, a}, src)), src);
}

TEST(Convert, between_maps_goes_through_the_canonical_value) {
  const float x[] = {0.5F, -0.25F};
  std::vector<std::byte> src(sizeof x);
  std::memcpy(src.data(), x, sizeof x);
  const auto out =
      converted({{DType::f32, ValueMap::plus_one}, {DType::f32, ValueMap::minus_one}}, src);
  EXPECT_EQ(float_at(out, 0), -1.5F);
  EXPECT_EQ(float_at(out, 1), -2.25F);
}

TEST(Convert, a_box_is_converted_where_it_lies) {
  // The right two columns of a 3 x 4 tensor of F32 into the left of a 3 x 2 one of BF16.
  std::vector<float> src(12);
  for (std::size_t i = 0; i < 12; ++i) src[i] = static_cast<float>(i);
  std::vector<std::uint16_t> dst(6, 0xffff);
  const auto copy = make_widening_copy({3, 2}, {2, {4, 1}}, {0, {2, 1}}, 4, 2);
  EXPECT_EQ(copy.bytes(), 12);
  run_conversion(copy, {kF32, kBf16}, reinterpret_cast<const std::byte*>(src.data()),
                 reinterpret_cast<std::byte*>(dst.data()));
  const std::vector<float> want = {2, 3, 6, 7, 10, 11};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(from_bf16(dst[i]), want[i]);
}

TEST(Convert, loss_is_known) {
  EXPECT_TRUE(loses_precision({kF32, kBf16}));
  EXPECT_TRUE(loses_precision({kF16, kBf16}));
  EXPECT_TRUE(loses_precision({kBf16, kF16}));
  EXPECT_FALSE(loses_precision({kBf16, kF32}));
  EXPECT_FALSE(loses_precision({kF16, kF32}));
  EXPECT_FALSE(loses_precision({kF16, kF16}));
  EXPECT_TRUE(loses_precision({kBf16, {DType::f32, ValueMap::negated_exp}}));
}

}  // namespace
}  // namespace reshard
