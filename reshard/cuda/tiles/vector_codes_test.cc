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

/// The largest magnitudes of blocks: all of BF16, and floats beside them that are no BF16.
template <CodeKind C, ScaleKind S>
void expect_scales_of_blocks(float matrix_amax) {
  const ScaleMaker maker = scale_maker(S, C, 0, true, S == ScaleKind::e4m3, matrix_amax);
  const BlockScales<C, S> scales(maker);
  for (std::uint32_t half = 0; half < 0x8000; ++half)
    for (const std::uint32_t amax : {half << 16, (half << 16) + 1, (half << 16) + 0x5bd1}) {
      const BlockScale expected = block_scale(maker, amax), found = scales.of(amax);
      ASSERT_EQ(found.stored, expected.stored) << bits_float(amax) << ", of " << matrix_amax;
      if (is_nan_bits(float_bits(expected.by)))
        ASSERT_TRUE(is_nan_bits(float_bits(found.by))) << bits_float(amax);
      else
        ASSERT_EQ(found.by, expected.by) << bits_float(amax) << ", of " << matrix_amax;
    }
}

TEST(VectorCodes, ScalesOfManyBlocksAreThePlainOnes) {
  for (const float most :
       {0.0F, 1e-44F, 0x1p-70F, 0x1p-49F, 0x1p-48F, 0.013F, 0.0725F, 1.0F, 2.87F, 448.0F, 3.1e4F,
        0x1p70F, 0x1.8p72F, 3e38F, bits_float(kFloatInfinity), bits_float(kFloatNan)}) {
    expect_scales_of_blocks<CodeKind::e2m1, ScaleKind::e4m3>(most);
    expect_scales_of_blocks<CodeKind::e4m3, ScaleKind::f32_exact>(most);
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
