// SPDX-License-Identifier: Apache-2.0
// Protects: quantised bytes are those of the formats' definitions, at every instruction set and in
// any split into rows.
#include "reshard/transform/quantise.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reshard/transform/kernels/convert_kernels.h"
#include "reshard/transform/quantise_cases_testutil.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// At every level: equal to the reference.
void expect_reference(const QuantFormat& format, PlainMatrix& plain, const std::string& what) {
  const FloatMatrix m = plain.view();
  const QuantBytes want = reference_quantise(format, m.dtype, m.rows, m.cols, plain.values());
  for (const SimdLevel level : available_simd_levels()) {
    const KernelScope scope({level, true});
    const QuantBytes got = quantised(format, plain);
    const auto place = [](const auto& a, const auto& b) {
      return std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
    };
    ASSERT_TRUE(got == want) << to_string(format) << " of " << name(m.dtype) << " [" << m.rows
                             << ", " << m.cols << "], " << name(level) << ", " << what
                             << ": data differs at " << place(got.data, want.data) << ", scales at "
                             << place(got.scales, want.scales) << ", factors " << got.factor << " "
                             << want.factor;
  }
}

TEST(Quantise, every_format_of_every_dtype_and_odd_size_is_that_of_the_reference) {
  const std::pair<Index, Index> sizes[] = {{1, 2}, {5, 38}, {130, 66}, {33, 300}, {2, 1030}};
  std::uint64_t seed = 0;
  for (const QuantFormat& format : quant_formats())
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const auto& [rows, cols] : sizes)
        for (int i = 0; i < 3; ++i, ++seed) {
          PlainMatrix plain(dtype, rows, cols, random_values(rows * cols, seed));
          ASSERT_NO_FATAL_FAILURE(expect_reference(format, plain, std::to_string(seed)));
        }
}

TEST(Quantise, every_16_bit_number_is_cast_as_the_reference_does) {
  for (const QuantFormat& format : quant_formats()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      // In the order of magnitudes, so that blocks are of one size, and far from it.
      for (const unsigned step : {1U, 2049U}) {
        std::vector<float> values;
        for (unsigned i = 0; i < 65536; ++i) {
          const auto half = static_cast<std::uint16_t>(i * step);
          values.push_back(dtype == DType::bf16 ? from_bf16(half) : from_f16(half));
        }
        PlainMatrix plain(dtype, 32, 2048, values);
        ASSERT_NO_FATAL_FAILURE(expect_reference(format, plain, "all halves"));
      }
    }
  }
}

TEST(Quantise, casts_of_all_halves_under_a_scale_of_one_are_the_nearest_codes) {
  // A block with the largest number in it has the scale 1.
  for (const char* name : {"mxfp8", "mxfp4", "fp8_group", "fp8_group_pow2"}) {
    const QuantFormat format = *quant_format_from_name(name);
    const float largest = format.data == DType::f4 ? 6 : 448;
    for (const SimdLevel level : available_simd_levels()) {
      const KernelScope scope({level, true});
      for (unsigned i = 0; i < 65536; ++i) {
        const float value = from_bf16(static_cast<std::uint16_t>(i));
        if (!(std::abs(value) <= largest)) continue;
        std::vector<float> block(static_cast<std::size_t>(format.block_cols), value);
        block[0] = largest;
        PlainMatrix plain(DType::bf16, 1, format.block_cols, block);
        const QuantBytes got = quantised(format, plain);
        unsigned want = nearest_code(format.data, value);
        if (format.data == DType::f4) want |= want << 4;
        ASSERT_EQ(std::to_integer<unsigned>(got.data[1]), want) << name << " of " << value;
      }
    }
  }
}

struct Special {
  const char* what;
  std::vector<float> first;  ///< elements of the block; the others are 0.
};

TEST(Quantise, blocks_of_special_values_are_those_of_the_reference) {
  const Special specials[] = {
      {"zeros", {}},
      {"negative zeros", std::vector<float>(512, -0.0F)},
      {"NaN", {1.0F, kNan, -2.0F}},
      {"negative NaN", {-kNan}},
      {"infinity", {1.0F, kInfinity, 1e38F, -kInfinity, 1e-30F}},
      {"infinity and NaN", {kInfinity, kNan}},
      {"the largest float", {3.4e38F, 1.0F, -1e37F}},
      {"the least float", {1e-45F, -1e-45F}},
      {"subnormal", {1e-40F, 5e-39F, -1e-44F}},
      {"a scale of one place", {600 * 0x1p-149F, -300 * 0x1p-149F}},
      {"a scale that is 0", {200 * 0x1p-149F, -2 * 0x1p-149F}},
      {"the least normal", {0x1p-126F, -0x1p-127F}},
      {"just at 2^-127 of 448", {448 * 0x1p-127F, 1.0F * 0x1p-127F}},
      {"just above 2^-127 of 448", {449 * 0x1p-127F, 300 * 0x1p-127F}},
      {"just at 2^-127 of 6", {6 * 0x1p-127F, 2 * 0x1p-127F}},
      {"just above 2^-126 of 6", {6.5F * 0x1p-126F, 2 * 0x1p-126F}},
      {"exactly 448", {448.0F, 447.0F, 1.0F}},
      {"above 448 by one place", {std::nextafter(448.0F, 1e9F), -448.0F}},
      {"below 448 by one place", {std::nextafter(448.0F, 0.0F), -448.0F}},
      {"ties of E4M3", {448, 17, 19, 0x1.1p0F, 0x1.3p0F, 0x1p-10F, 0x3p-10F, 0x5p-10F, -0x1p-10F}},
      {"ties of E2M1", {6, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, -0.25F, -5.0F}},
      {"large beside small", {1e30F, 1e-30F, 1.0F}},
  };
  for (const QuantFormat& format : quant_formats()) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      for (const Special& special : specials) {
        std::vector<float> values = special.first;
        values.resize(512, 0.0F);
        PlainMatrix wide(dtype, 1, 512, values), tall(dtype, 16, 32, values);
        ASSERT_NO_FATAL_FAILURE(expect_reference(format, wide, special.what));
        ASSERT_NO_FATAL_FAILURE(expect_reference(format, tall, special.what));
      }
    }
  }
}

TEST(Quantise, the_conventions_of_the_page_hold) {
  const auto scale_and_code = [](const char* name, std::vector<float> values) {
    const QuantFormat format = *quant_format_from_name(name);
    values.resize(128, 0.0F);
    PlainMatrix plain(DType::f32, 1, 128, values);
    const QuantBytes bytes = quantised(format, plain);
    return std::pair(std::to_integer<unsigned>(bytes.scales[0]),
                     std::to_integer<unsigned>(bytes.data[0]));
  };
  using Pair = std::pair<unsigned, unsigned>;
  EXPECT_EQ(scale_and_code("mxfp8", {0.0F}), Pair(0, 0));
  EXPECT_EQ(scale_and_code("mxfp8", {-0.0F}), Pair(0, 0x80));
  EXPECT_EQ(scale_and_code("mxfp8", {448.0F}), Pair(127, 0x7e));
  EXPECT_EQ(scale_and_code("mxfp8", {449.0F}), Pair(128, 0x76));
  EXPECT_EQ(scale_and_code("mxfp8_floor", {500.0F}), Pair(127, 0x7e));
  EXPECT_EQ(scale_and_code("mxfp8", {1.0F, kNan}), Pair(255, 0x7f));
  EXPECT_EQ(scale_and_code("mxfp8", {-kInfinity, 1.0F}), Pair(254, 0xfe));
  EXPECT_EQ(scale_and_code("mxfp4", {-6.0F}), Pair(127, 0x0f));
  EXPECT_EQ(scale_and_code("mxfp4", {1.0F, kNan}), Pair(255, 0x77));
  EXPECT_EQ(scale_and_code("nvfp4", {0.0F}), Pair(0, 0));
  EXPECT_EQ(scale_and_code("nvfp4", {3.0F}), Pair(0x7e, 0x07));
  EXPECT_EQ(scale_and_code("mxfp8", {0x1p-120F}), Pair(0, 0)) << "unscaled, as the engines do";
  EXPECT_EQ(scale_and_code("mxfp8_floor", {0x1p-120F}), Pair(0, 0x70)) << "as OCP MX says";
}

RC_GTEST_PROP(Quantise, any_split_into_rows_gives_the_whole, ()) {
  const QuantFormat format =
      quant_formats()[*rc::gen::inRange<std::size_t>(0, quant_formats().size())];
  const Index rows = *rc::gen::inRange<Index>(1, 300), cols = 2 * *rc::gen::inRange<Index>(1, 80);
  PlainMatrix plain(DType::bf16, rows, cols,
                    random_values(rows * cols, *rc::gen::arbitrary<std::uint64_t>()));
  QuantBytes whole = quantised(format, plain);
  QuantBytes pieces = quant_bytes(format, rows, cols, std::byte{0x5a});
  const bool any_rows = format.block_rows == 0 && format.block_cols == 0;
  const Index step = any_rows ? 1 : format.block_rows == 0 ? rows : format.block_rows;
  std::vector<std::pair<Index, Index>> ranges;
  for (Index begin = 0; begin < rows;) {
    const Index end = std::min(begin + step * *rc::gen::inRange<Index>(1, 9), rows);
    ranges.emplace_back(begin, end);
    begin = end;
  }
  std::reverse(ranges.begin(), ranges.end());
  for (const auto& [begin, end] : ranges)
    quantise_rows(plain.view(), view(format, rows, cols, pieces), begin, end, amax(plain.view()));
  RC_ASSERT(pieces == whole);

  PlainMatrix at_once(DType::f16, rows, cols,
                      std::vector<float>(static_cast<std::size_t>(rows * cols)));
  PlainMatrix row_by_row = at_once;
  dequantise_rows(view(format, rows, cols, whole), at_once.view(), 0, rows);
  for (Index r = rows; r-- > 0;)
    dequantise_rows(view(format, rows, cols, whole), row_by_row.view(), r, r + 1);
  const FloatMatrix a = at_once.view(), b = row_by_row.view();
  RC_ASSERT(std::memcmp(a.data, b.data, static_cast<std::size_t>(rows * a.row_bytes - 5)) == 0);
}

TEST(Quantise, an_amax_that_is_too_small_saturates_and_keeps_nan) {
  std::vector<float> values(80, 0.25F);
  values[3] = 2.0F;
  values[35] = -kInfinity;
  values[70] = kNan;
  for (const SimdLevel level : available_simd_levels()) {
    const KernelScope scope({level, true});
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      for (const ScaleRule rule : {ScaleRule::exact, ScaleRule::up}) {
        const QuantFormat format{
            .scale = DType::f32, .block_rows = 0, .block_cols = 0, .rule = rule};
        PlainMatrix plain(dtype, 2, 40, values);
        QuantBytes bytes = quant_bytes(format, 2, 40, std::byte{0});
        quantise_rows(plain.view(), view(format, 2, 40, bytes), 0, 2, 0.4375F);
        const auto code = [&](std::size_t i) { return std::to_integer<unsigned>(bytes.data[i]); };
        EXPECT_EQ(code(0), nearest_code(format.data, 256)) << name(level);
        EXPECT_EQ(code(3), 0x7eU) << name(level);
        EXPECT_EQ(code(35), 0xfeU) << name(level);
        EXPECT_EQ(code(70), 0x7fU) << name(level);
      }
    }
  }
}

TEST(Quantise, swizzled_scales_are_the_rows_in_tiles_with_zeros_around) {
  for (const char* name : {"mxfp8", "mxfp4", "nvfp4"}) {
    const QuantFormat rows_format = *quant_format_from_name(name);
    const QuantFormat tiles_format = *quant_format_from_name(std::string(name) + "_swizzled");
    for (const auto& [rows, cols] :
         {std::pair<Index, Index>{1, 32}, {128, 128}, {129, 160}, {300, 272}}) {
      PlainMatrix plain(DType::bf16, rows, cols, random_values(rows * cols, 3));
      const QuantBytes flat = quantised(rows_format, plain);
      QuantBytes tiled = quantised(tiles_format, plain);
      EXPECT_EQ(flat.data, tiled.data);
      const Index across = scale_cols(rows_format, cols);
      EXPECT_EQ(tiled.scales.size(),
                static_cast<std::size_t>((rows + 127) / 128 * ((across + 3) / 4) * 512));
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < across; ++c) {
          std::byte& at = tiled.scales[reference_scale_place(tiles_format, cols, r, c)];
          EXPECT_EQ(at, flat.scales[static_cast<std::size_t>(r * across + c)]);
          at = std::byte{0};
        }
      }
      EXPECT_TRUE(std::all_of(tiled.scales.begin(), tiled.scales.end(),
                              [](std::byte b) { return b == std::byte{0}; }));
    }
  }
}

TEST(Quantise, amax_is_the_largest_magnitude_and_nan_where_there_is_one) {
  for (const SimdLevel level : available_simd_levels()) {
    const KernelScope scope({level, true});
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      std::vector<float> values(99, 0.5F);
      values[98] = -3.0F;
      EXPECT_EQ(amax(PlainMatrix(dtype, 3, 33, values).view()), 3.0F);
      values[40] = kNan;
      EXPECT_TRUE(std::isnan(amax(PlainMatrix(dtype, 3, 33, values).view())));
      EXPECT_EQ(amax(PlainMatrix(dtype, 0, 33, {}).view()), 0.0F);
      EXPECT_EQ(amax(PlainMatrix(dtype, 4, 0, {}).view()), 0.0F);
    }
  }
}

TEST(Quantise, a_matrix_without_elements_has_no_scales) {
  for (const QuantFormat& format : quant_formats()) {
    for (const auto& [rows, cols] : {std::pair<Index, Index>{0, 64}, {64, 0}, {0, 0}}) {
      EXPECT_TRUE(check_quant_format(format, rows, cols));
      EXPECT_EQ(scale_rows(format, rows) * scale_cols(format, cols), 0);
      PlainMatrix plain(DType::bf16, rows, cols, {});
      EXPECT_TRUE(quantised(format, plain).data.empty());
    }
  }
}

TEST(Quantise, formats_that_no_kernel_knows_are_refused) {
  for (const QuantFormat& format : quant_formats()) EXPECT_TRUE(check_quant_format(format, 7, 62));
  const QuantFormat bad[] = {
      {.data = DType::f8_e5m2},
      {.data = DType::bf16},
      {.scale = DType::bf16},
      {.rule = ScaleRule::exact},
      {.scale = DType::f8_e4m3, .rule = ScaleRule::up},
      {.rule = static_cast<ScaleRule>(9)},
      {.block_rows = -1},
      {.block_cols = -32},
      {.data = DType::f4, .block_cols = 15},
      {.data = DType::i4},
      {.data = DType::i8, .scale = DType::f32, .rule = ScaleRule::up},
      {.data = DType::i4, .scale = DType::bf16, .block_cols = 15, .rule = ScaleRule::exact},
      {.data = DType::f4, .scale = DType::bf16, .rule = ScaleRule::exact},
      {.block_rows = 2, .order = ScaleOrder::swizzled},
      {.scale = DType::f32, .order = ScaleOrder::swizzled},
      {.order = static_cast<ScaleOrder>(7)},
      {.zero_block = 5},
      {.tensor_factor = true},
  };
  for (const QuantFormat& format : bad) {
    const auto result = check_quant_format(format, 64, 64);
    ASSERT_FALSE(result) << to_string(format);
    EXPECT_EQ(result.error().code, Code::invalid_argument);
  }
  const QuantFormat f4 = *quant_format_from_name("mxfp4"), f8 = *quant_format_from_name("mxfp8");
  EXPECT_FALSE(check_quant_format(f4, 1, 33));
  EXPECT_FALSE(check_quant_format(f8, -1, 32));
  EXPECT_FALSE(check_quant_format(f8, Index{1} << 40, Index{1} << 40));
}

}  // namespace
}  // namespace reshard
