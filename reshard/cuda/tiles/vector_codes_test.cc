// SPDX-License-Identifier: Apache-2.0
// What threads do with eight values at a time is what the arithmetic says of one.
#include "reshard/cuda/tiles/vector_codes.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "reshard/cuda/tiles/run_blocks.h"

namespace reshard::cuda {
namespace {

TEST(VectorCodes, E2m1WithoutABranchIsThePlainOne) {
  // All BF16 numbers, which include all ties, and the floats beside them.
  for (std::uint32_t half = 0; half < 0x10000; ++half)
    for (const std::uint32_t bits : {half << 16, (half << 16) + 1, (half << 16) - 1}) {
      const float value = bits_float(bits);
      if (is_nan_bits(bits)) continue;
      ASSERT_EQ(e2m1_code(value), small_from_float(CodeKind::e2m1, value)) << value;
    }
}

template <DType D>
void expect_values_and_magnitude(const std::array<std::uint16_t, 16>& words) {
  alignas(16) std::byte memory[32];
  std::memcpy(memory, words.data(), sizeof memory);
  const auto stored = Stored<D>::load(memory);
  const Eight values = stored.values();
  std::uint32_t most = 0;
  for (int k = 0; k < 8; ++k) {
    const float value = load_value(D, memory + k * width_of(D));
    ASSERT_EQ(float_bits(values.of[k]), float_bits(value));
    most = std::max(most, float_bits(value) & kFloatMagnitude);
  }
  const std::uint32_t found = stored.magnitude();
  if (is_nan_bits(most))
    ASSERT_TRUE(is_nan_bits(found));
  else
    ASSERT_EQ(found, most);
  alignas(16) std::byte back[32] = {};
  store_eight<D>(values, back);
  ASSERT_EQ(std::memcmp(back, memory, static_cast<std::size_t>(8 * width_of(D))), 0);
}

TEST(Vectors, AreValuesTheirMagnitudeAndTheSameBytesAgain) {
  std::array<std::uint16_t, 16> words{};
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    for (std::uint32_t k = 0; k < 16; ++k) {
      // NaN of F16 that is not quiet comes back quiet: the casts of one value say so, too.
      const auto word = static_cast<std::uint16_t>((i * 40503U + k * 977U) & 0xffffU);
      words[k] = (word & 0x7c00U) == 0x7c00U ? static_cast<std::uint16_t>(word & 0xfc00U) : word;
    }
    expect_values_and_magnitude<DType::bf16>(words);
    expect_values_and_magnitude<DType::f16>(words);
    expect_values_and_magnitude<DType::f32>(words);
  }
}

TEST(SmallDivisor, DividesNumbersBelow65536) {
  for (const std::uint32_t by : {1U, 2U, 3U, 7U, 168U, 180U, 2047U, 2048U, 65535U, 65536U})
    for (std::uint32_t n = 0; n < 65536; ++n) ASSERT_EQ(SmallDivisor(by).quotient(n), n / by);
}

TEST(VectorCodes, WithScaleNamesEveryKindThatIsTaken) {
  const auto check = [](auto codes) {
    for (int i = 0; i <= static_cast<int>(ScaleKind::f16_exact); ++i) {
      const auto kind = static_cast<ScaleKind>(i);
      if (!takes_scale(codes.value, kind)) continue;
      with_scale<codes.value>(kind, [&](auto scale) { EXPECT_EQ(scale.value, kind); });
    }
  };
  for (int i = 0; i < kCodeKinds; ++i) with_codes(static_cast<CodeKind>(i), check);
}

}  // namespace
}  // namespace reshard::cuda
