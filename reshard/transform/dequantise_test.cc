// SPDX-License-Identifier: Apache-2.0
// Protects: quantised bytes become the values that the formats' definitions give them, and those
// are near the ones that were quantised.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reshard/base/hash.h"
#include "reshard/transform/quantise.h"
#include "reshard/transform/quantise_cases_testutil.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

TEST(Dequantise, all_codes_decode_to_their_values) {
  for (const DType data : {DType::f8_e4m3, DType::f4}) {
    const QuantFormat format{.data = data, .block_cols = 256};
    QuantBytes bytes = quant_bytes(format, 1, 256, std::byte{127});
    for (unsigned i = 0; i < bytes.data.size(); ++i) bytes.data[i] = static_cast<std::byte>(i);
    for (const SimdLevel level : available_simd_levels()) {
      const KernelScope scope({level, true});
      PlainMatrix plain(DType::f32, 1, 256, std::vector<float>(256));
      dequantise_rows(view(format, 1, 256, bytes), plain.view(), 0, 1);
      const std::vector<float> got = plain.values();
      for (unsigned i = 0; i < 256; ++i) {
        const unsigned byte = data == DType::f4 ? i / 2 : i;
        const unsigned code = data == DType::f4 ? byte >> (i % 2 * 4) & 15U : byte;
        const auto want = static_cast<float>(value_of_code(data, code));
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got[i]) : got[i] == want) << i;
        ASSERT_EQ(std::signbit(got[i]), (code >> (data == DType::f4 ? 3 : 7)) != 0) << i;
      }
    }
  }
}

TEST(Dequantise, dequantised_values_are_those_of_the_reference) {
  std::uint64_t seed = 1000;
  for (const QuantFormat& format : quant_formats()) {
    for (int i = 0; i < 20; ++i, ++seed) {
      const Index rows = 9, cols = 270;
      // Any bytes: what others wrote, too.
      QuantBytes bytes = quant_bytes(format, rows, cols, std::byte{0});
      bytes.data = random_bytes(static_cast<Index>(bytes.data.size()), seed);
      bytes.scales = random_bytes(static_cast<Index>(bytes.scales.size()), seed + 1);
      bytes.factor = 0x1.8p-9F;
      const std::vector<float> want = reference_dequantise(format, rows, cols, bytes);
      for (const SimdLevel level : available_simd_levels()) {
        const KernelScope scope({level, true});
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
          PlainMatrix got(dtype, rows, cols, std::vector<float>(want.size()));
          dequantise_rows(view(format, rows, cols, bytes), got.view(), 0, rows);
          const std::vector<float> got_values = got.values();
          const std::vector<float> rounded = PlainMatrix(dtype, rows, cols, want).values();
          for (std::size_t e = 0; e < want.size(); ++e)
            ASSERT_TRUE(std::isnan(want[e]) ? std::isnan(got_values[e])
                                            : got_values[e] == rounded[e])
                << to_string(format) << " " << name(level) << " " << name(dtype) << " at " << e
                << ": " << got_values[e] << " but " << rounded[e];
        }
      }
    }
  }
}

TEST(Dequantise, values_come_back_within_half_a_place) {
  for (const QuantFormat& format : quant_formats()) {
    const Index rows = 40, cols = 260;
    std::vector<float> before;
    for (Index i = 0; i < rows * cols; ++i)
      before.push_back(
          static_cast<float>(static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i)))) *
          0x1p-36F);
    PlainMatrix plain(DType::f32, rows, cols, before);
    QuantBytes bytes = quantised(format, plain);
    PlainMatrix back(DType::f32, rows, cols, std::vector<float>(before.size()));
    dequantise_rows(view(format, rows, cols, bytes), back.view(), 0, rows);
    const std::vector<float> after = back.values();
    // Half a place, or what saturates where the scale is rounded down: 512 becomes 448, 8
    // becomes 6.
    const bool down = format.rule == ScaleRule::floor, f4 = format.data == DType::f4;
    const double relative = has_integers(format) ? 0 : f4 ? 0.25 : down ? 0.125 : 1.0 / 17;
    // Of integers half a step of a scale that BF16 may round by 2^-8.
    const double step = format.data == DType::i4 ? 0.54 / 7.5 : 0.54 / 127.5 + 0x1p-8;
    const double least = amax(plain.view()) * (has_integers(format) ? step : f4 ? 0.125 : 0x1p-17);
    double worst = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double error = std::abs(double{before[i]} - double{after[i]});
      ASSERT_LE(error, std::max(relative * std::abs(double{before[i]}), least))
          << to_string(format) << " of " << before[i] << " gives " << after[i];
      worst = std::max(worst, error);
    }
    EXPECT_GT(worst, 0) << to_string(format);
  }
}

}  // namespace
}  // namespace reshard
