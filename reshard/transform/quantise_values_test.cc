// SPDX-License-Identifier: Apache-2.0
// Protects: every value of 16 bits, every byte of data and every scale, in every format, at every
// instruction set, is what the formats' definitions say; and a second round changes no value.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/quantise.h"
#include "reshard/transform/quantise_cases_testutil.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

/// All bf16 or f16 numbers between two magnitudes.
std::vector<float> halves(DType dtype, float least, float most) {
  std::vector<float> out;
  for (unsigned i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float v = dtype == DType::bf16 ? from_bf16(bits) : from_f16(bits);
    if (std::abs(v) >= least && std::abs(v) <= most) out.push_back(v);
  }
  return out;
}

void expect_reference(const QuantFormat& format, PlainMatrix& plain, const std::string& what) {
  const FloatMatrix m = plain.view();
  const QuantBytes want = reference_quantise(format, m.dtype, m.rows, m.cols, plain.values());
  for (const SimdLevel level : available_simd_levels()) {
    const KernelScope scope({level, true});
    ASSERT_TRUE(quantised(format, plain) == want)
        << to_string(format) << " of " << name(m.dtype) << ", " << name(level) << ", " << what;
  }
}

/// A NaN or a large number anywhere decides over formats with one scale for all: here are none, and
/// magnitudes of a few hundred binades, of a few, and of the subnormal ones.
TEST(QuantiseValues, every_finite_16_bit_number_is_cast_as_the_reference_does) {
  for (const QuantFormat& format : quant_formats())
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const auto& [least, most] : {std::pair{0.0F, 3.4e38F},
                                        {0.0F, 2688.0F},
                                        {0.0F, 6.0F},
                                        {0x1p-12F, 0x1p4F},
                                        {0.0F, 0x1p-14F}}) {
        std::vector<float> values = halves(dtype, least, most);
        values.resize((values.size() + 511) / 512 * 512, 0.0F);
        PlainMatrix plain(dtype, static_cast<Index>(values.size()) / 512, 512, values);
        ASSERT_NO_FATAL_FAILURE(expect_reference(format, plain, std::to_string(most)));
      }
}

/// A matrix of these values whose every block begins with `largest`; `at_all` is in no block of
/// theirs and the largest of all.
std::vector<float> under_scale_one(const std::vector<float>& values, Index cols, Index block,
                                   float largest, float at_all) {
  std::vector<float> out(static_cast<std::size_t>(block), at_all);
  for (std::size_t next = 0; next < values.size();) {
    if (static_cast<Index>(out.size()) % block == 0)
      out.push_back(largest);
    else
      out.push_back(values[next++]);
  }
  while (static_cast<Index>(out.size()) % cols != 0)
    out.push_back(static_cast<Index>(out.size()) % block == 0 ? largest : 0.0F);
  return out;
}

TEST(QuantiseValues, casts_of_all_halves_under_a_scale_of_one_are_the_nearest_codes) {
  struct Case {
    const char* name;
    Index block;
    float largest, at_all;
  };
  // NVFP4: amax 2688 makes the factor 1. Blocks of 128 x 128 and whole rows have 448 every 16.
  const Case formats[] = {{"nvfp4", 16, 6, 2688},           {"fp8_block", 16, 448, 448},
                          {"fp8_channel", 16, 448, 448},    {"fp8_tensor", 16, 448, 448},
                          {"fp8_block_pow2", 16, 448, 448}, {"mxfp8", 32, 448, 448},
                          {"mxfp8_floor", 32, 448, 448},    {"mxfp4_floor", 32, 6, 6}};
  for (const Case& c : formats)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const QuantFormat format = *quant_format_from_name(c.name);
      const auto values =
          under_scale_one(halves(dtype, 0, c.largest), 256, c.block, c.largest, c.at_all);
      const auto rows = static_cast<Index>(values.size()) / 256;
      PlainMatrix matrix(dtype, rows, 256, values);
      const bool f4 = format.data == DType::f4;
      for (const SimdLevel level : available_simd_levels()) {
        const KernelScope scope({level, true});
        const QuantBytes got = quantised(format, matrix);
        for (std::size_t i = static_cast<std::size_t>(c.block); i < values.size(); ++i) {
          const auto byte = std::to_integer<unsigned>(got.data[f4 ? i / 2 : i]);
          const unsigned code = f4 ? byte >> (i % 2 * 4) & 15U : byte;
          ASSERT_EQ(code, nearest_code(format.data, values[i]))
              << c.name << " of " << values[i] << ", " << name(level);
        }
      }
    }
}

/// Scales to try: all bytes, or what is special among floats.
std::vector<std::uint32_t> scale_codes(const QuantFormat& format) {
  std::vector<std::uint32_t> out;
  if (format.scale != DType::f32)
    for (std::uint32_t i = 0; i < 256; ++i) out.push_back(i);
  else
    for (const float f :
         {0.0F, -0.0F, 1.0F, 0.3F, -2.0F, 0x1p-126F, 1e-45F, 0x1p-140F, 3e38F,
          std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
      out.push_back(std::bit_cast<std::uint32_t>(f));
  return out;
}

void expect_values(const QuantFormat& format, Index rows, Index cols, QuantBytes& bytes) {
  const std::vector<float> want = reference_dequantise(format, rows, cols, bytes);
  for (const SimdLevel level : available_simd_levels())
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      const KernelScope scope({level, true});
      PlainMatrix got(dtype, rows, cols, std::vector<float>(want.size()));
      dequantise_rows(view(format, rows, cols, bytes), got.view(), 0, rows);
      const auto values = got.values(), rounded = PlainMatrix(dtype, rows, cols, want).values();
      for (std::size_t e = 0; e < want.size(); ++e)
        ASSERT_TRUE(std::isnan(want[e]) ? std::isnan(values[e])
                                        : values[e] == rounded[e] &&
                                              std::signbit(values[e]) == std::signbit(rounded[e]))
            << to_string(format) << " " << name(level) << " " << name(dtype) << " at " << e << ": "
            << values[e] << " but " << rounded[e];
    }
}

TEST(QuantiseValues, every_byte_under_every_scale_is_the_value_of_the_reference) {
  for (const QuantFormat& format : quant_formats()) {
    // A block has all bytes of data, where it is as long; else blocks of one scale have them.
    const auto codes = scale_codes(format);
    const Index cols = 512, down = std::max<Index>(format.block_rows, 1);
    const Index rows = format.block_rows == 0 ? 3 : static_cast<Index>(codes.size()) * down;
    QuantBytes bytes = quant_bytes(format, rows, cols, std::byte{0});
    const Index row_bytes = static_cast<Index>(bytes.data.size()) / rows;
    for (std::size_t i = 0; i < bytes.data.size(); ++i)
      bytes.data[i] = static_cast<std::byte>(i % static_cast<std::size_t>(row_bytes));
    const auto width = static_cast<std::size_t>(bits(format.scale) / 8);
    bytes.factor = format.tensor_factor ? 0x1.8p-3F : 0;
    for (std::size_t first = 0; first < (format.block_rows == 0 ? codes.size() : 1); ++first) {
      for (Index r = 0; r < scale_rows(format, rows); ++r)
        for (Index c = 0; c < scale_cols(format, cols); ++c) {
          const std::uint32_t code = codes[(first + static_cast<std::size_t>(r)) % codes.size()];
          for (std::size_t b = 0; b < width; ++b)
            bytes.scales[reference_scale_place(format, cols, r, c) + b] =
                static_cast<std::byte>(code >> (8 * b));
        }
      ASSERT_NO_FATAL_FAILURE(expect_values(format, rows, cols, bytes));
    }
  }
}

/// Quantised, and back.
std::vector<float> there_and_back(const QuantFormat& format, Index rows, Index cols,
                                  const std::vector<float>& values) {
  PlainMatrix plain(DType::f32, rows, cols, values);
  QuantBytes bytes = quantised(format, plain);
  PlainMatrix back(DType::f32, rows, cols, std::vector<float>(values.size()));
  dequantise_rows(view(format, rows, cols, bytes), back.view(), 0, rows);
  return back.values();
}

/// In every layout of scales: a power of two that is rounded up has the next round's values among
/// its own, so that they stay.
TEST(QuantiseValues, a_second_round_changes_no_value) {
  int layouts = 0;
  for (const QuantFormat& format : quant_formats()) {
    if (format.rule != ScaleRule::up) continue;
    ++layouts;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const Index rows = 131, cols = 200;
      std::vector<float> values = random_values(rows * cols, seed);
      // Magnitudes whose scales no format has are another test's.
      for (float& v : values)
        if (!(std::abs(v) < 1e30F) || std::abs(v) < 1e-30F) v = 0;
      const auto once = there_and_back(format, rows, cols, values);
      EXPECT_EQ(there_and_back(format, rows, cols, once), once) << to_string(format) << " " << seed;
    }
  }
  EXPECT_GE(layouts, 8);
}

}  // namespace
}  // namespace reshard
