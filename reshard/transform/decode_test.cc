// SPDX-License-Identifier: Apache-2.0
// Protects: integers are found where quantisers put them, and become the values that their scales
// and zero points give them, whichever part of a tensor is decoded.
#include "reshard/transform/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "reshard/transform/convert_arithmetic.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard {
namespace {

/// A matrix of numbers, by row and column.
template <class T>
struct Grid {
  Index rows, cols;
  std::vector<T> values;
  Grid(Index r, Index c) : rows(r), cols(c), values(static_cast<std::size_t>(r * c)) {}
  T& at(Index r, Index c) { return values[static_cast<std::size_t>(r * cols + c)]; }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(values.data()); }
};

Grid<int> random_codes(Index rows, Index cols, int bits, std::mt19937& random) {
  Grid<int> codes(rows, cols);
  for (int& code : codes.values) code = static_cast<int>(random() >> 8 & ((1U << bits) - 1));
  return codes;
}

Grid<float> random_scales(Index rows, Index groups, std::mt19937& random) {
  Grid<float> scales(rows, groups);
  for (float& scale : scales.values) scale = static_cast<float>(random() % 1000 + 1) / 4096;
  return scales;
}

/// Each word: `k` consecutive integers along one dimension, the i-th at place order[i].
std::vector<std::uint32_t> packed(Grid<int>& codes, int bits, bool along_rows,
                                  const std::vector<int>& order) {
  const Index k = 32 / bits;
  const Index rows = along_rows ? (codes.rows + k - 1) / k : codes.rows;
  const Index cols = along_rows ? codes.cols : (codes.cols + k - 1) / k;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * cols));
  for (Index r = 0; r < codes.rows; ++r)
    for (Index c = 0; c < codes.cols; ++c) {
      const Index along = along_rows ? r : c;
      const Index word = (along_rows ? r / k : r) * cols + (along_rows ? c : c / k);
      words[static_cast<std::size_t>(word)] |= static_cast<std::uint32_t>(codes.at(r, c))
                                               << bits * order[static_cast<std::size_t>(along % k)];
    }
  return words;
}

const std::byte* bytes_of(const std::vector<std::uint32_t>& words) {
  return reinterpret_cast<const std::byte*>(words.data());
}

std::vector<int> in_order(int n) {
  std::vector<int> order;
  for (int i = 0; i < n; ++i) order.push_back(i);
  return order;
}

std::vector<float> decoded(const CodedTensor& tensor, Index first, Index count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  decode(tensor, first, count, DType::f32, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

/// Decodes the whole, then parts of any size: all must give the wanted values.
void expect_values(const CodedTensor& tensor, const std::vector<float>& want) {
  const auto count = static_cast<Index>(want.size());
  EXPECT_EQ(decoded(tensor, 0, count), want);
  std::vector<std::uint16_t> halves(want.size());
  decode(tensor, 0, count, DType::bf16, reinterpret_cast<std::byte*>(halves.data()));
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(halves[i], to_bf16(want[i])) << i;
  std::vector<float> parts;
  for (Index at = 0, n = 1; at < count; at += n, n = std::min(n * 2 + 1, count - at)) {
    const auto part = decoded(tensor, at, n);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, want);
}

/// One matrix of integers in groups of columns.
struct Integers {
  Grid<int> codes, zeros;
  Grid<float> scales;
  Index group;
  Integers(Index rows, Index cols, Index group_cols, int bits, std::mt19937& random)
      : codes(random_codes(rows, cols, bits, random)),
        zeros(random_codes(rows, (cols + group_cols - 1) / group_cols, bits, random)),
        scales(random_scales(rows, zeros.cols, random)),
        group(group_cols) {}

  /// @param zero added to each zero point
  std::vector<float> values(int zero, const std::vector<std::int32_t>& group_of = {}) {
    std::vector<float> out;
    for (Index r = 0; r < codes.rows; ++r)
      for (Index c = 0; c < codes.cols; ++c) {
        const Index g = group_of.empty() ? c / group : group_of[static_cast<std::size_t>(c)];
        out.push_back(static_cast<float>(codes.at(r, c) - zeros.at(r, g) - zero) * scales.at(r, g));
      }
    return out;
  }
};

/// The transpose.
template <class T>
Grid<T> transposed(Grid<T>& grid) {
  Grid<T> out(grid.cols, grid.rows);
  for (Index r = 0; r < grid.rows; ++r)
    for (Index c = 0; c < grid.cols; ++c) out.at(c, r) = grid.at(r, c);
  return out;
}

/// Gives a matrix the F32 scales, a row of groups for each of its rows.
void set_scales(CodedMatrix& matrix, Integers& m, Index groups, Index group_cols) {
  matrix.scales = m.scales.bytes();
  matrix.scale_dtype = DType::f32;
  matrix.scale_row = groups;
  matrix.scale_group = 1;
  matrix.groups = groups;
  matrix.group_cols = group_cols;
}

TEST(Decode, awq_packs_eight_rows_of_a_column_in_its_order) {
  std::mt19937 random(1);
  // The column that each place of a word holds, as AutoAWQ's packing defines it.
  const std::vector<int> held = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<int> place(8);
  for (int i = 0; i < 8; ++i)
    place[static_cast<std::size_t>(held[static_cast<std::size_t>(i)])] = i;
  Integers m(24, 40, 16, 4, random);
  Grid<int> codes = transposed(m.codes), zeros = transposed(m.zeros);
  Grid<float> scales = transposed(m.scales);
  const auto words = packed(codes, 4, false, place), zero_words = packed(zeros, 4, false, place);
  PackedIntegers p{.words = bytes_of(words), .along_rows = true, .row_stride = 1, .col_stride = 3};
  for (std::size_t i = 0; i < 8; ++i) p.place[i] = static_cast<std::uint8_t>(place[i]);
  CodedMatrix matrix{.rows = 24, .cols = 40, .codes = p, .zeros = p};
  matrix.zeros->words = bytes_of(zero_words);
  matrix.scales = scales.bytes();
  matrix.scale_dtype = DType::f32;
  matrix.scale_row = 1;
  matrix.scale_group = 24;
  matrix.groups = 3;
  matrix.group_cols = 16;
  expect_values(matrix, m.values(0));
}

TEST(Decode, gptq_packs_columns_of_a_row_and_orders_groups_by_a_table) {
  std::mt19937 random(2);
  for (const int bits : {2, 4, 8})
    for (const bool ordered : {false, true}) {
      const Index k = 32 / bits, rows = 2 * k, cols = 3 * k;
      Integers m(rows, cols, k, bits, random);
      std::vector<std::int32_t> group_of;
      for (Index c = 0; ordered && c < cols; ++c)
        group_of.push_back(static_cast<std::int32_t>(random() % 3));
      Grid<int> codes = transposed(m.codes), zeros = transposed(m.zeros);
      Grid<float> scales = transposed(m.scales);
      const auto order = in_order(static_cast<int>(k));
      const auto words = packed(codes, bits, true, order);
      const auto zero_words = packed(zeros, bits, false, order);
      CodedMatrix matrix{.rows = rows, .cols = cols, .codes = {}};
      matrix.codes = {.words = bytes_of(words), .bits = bits, .row_stride = 1, .col_stride = rows};
      matrix.zeros = PackedIntegers{.words = bytes_of(zero_words),
                                    .bits = bits,
                                    .along_rows = true,
                                    .row_stride = 1,
                                    .col_stride = rows / k};
      matrix.zero_offset = 1;
      matrix.scales = scales.bytes();
      matrix.scale_dtype = DType::f32;
      matrix.scale_row = 1;
      matrix.scale_group = rows;
      matrix.groups = 3;
      matrix.group_cols = k;
      if (ordered) matrix.group_of_col = reinterpret_cast<const std::byte*>(group_of.data());
      expect_values(matrix, m.values(1, group_of));
    }
}

/// A stream of bits: each line of integers is one after another, the lowest bits first.
std::vector<std::uint32_t> stream(Grid<int>& codes, int bits, bool along_rows) {
  const Index n = along_rows ? codes.rows : codes.cols, words = n * bits / 32;
  const Index lines = along_rows ? codes.cols : codes.rows;
  std::vector<std::uint32_t> out(static_cast<std::size_t>(words * lines));
  for (Index line = 0; line < lines; ++line)
    for (Index bit = 0; bit < n * bits; ++bit) {
      const Index i = bit / bits, word = bit / 32;
      const int code = along_rows ? codes.at(i, line) : codes.at(line, i);
      out[static_cast<std::size_t>(along_rows ? word * lines + line : line * words + word)] |=
          static_cast<std::uint32_t>(code >> bit % bits & 1) << bit % 32;
    }
  return out;
}

TEST(Decode, integers_of_3_bits_cross_words) {
  std::mt19937 random(7);
  constexpr Index kRows = 64, kCols = 96;
  for (const bool along_rows : {false, true}) {
    Integers m(kRows, kCols, 48, 3, random);
    Grid<int> zeros = transposed(m.zeros);
    const auto words = stream(m.codes, 3, along_rows), zero_words = stream(zeros, 3, false);
    CodedMatrix matrix{.rows = kRows, .cols = kCols, .codes = {}};
    matrix.codes = {.words = bytes_of(words), .bits = 3, .along_rows = along_rows};
    matrix.codes.row_stride = along_rows ? kCols : kCols * 3 / 32;
    matrix.codes.col_stride = 1;
    matrix.zeros = PackedIntegers{.words = bytes_of(zero_words),
                                  .bits = 3,
                                  .along_rows = true,
                                  .row_stride = 1,
                                  .col_stride = kRows * 3 / 32};
    matrix.zero_offset = 1;
    set_scales(matrix, m, 2, 48);
    expect_values(matrix, m.values(1));
    // The zero point 0 of GPTQ's first format.
    const bool has_most = std::ranges::find(m.zeros.values, 7) != m.zeros.values.end();
    EXPECT_EQ(check_codes("w", matrix).has_value(), !has_most);
  }
}

TEST(Decode, planes_are_rows_apart_and_each_step_is_rounded) {
  std::mt19937 random(8);
  struct Form {
    int bits, per_word, word_bytes;
  };
  for (const Form form :
       {Form{8, 1, 1}, Form{4, 2, 1}, Form{3, 10, 4}, Form{2, 4, 1}, Form{1, 8, 1}})
    for (const bool by_rows : {false, true}) {
      constexpr Index kRows = 40, kCols = 24;
      Grid<int> codes = random_codes(kRows, kCols, form.bits, random);
      const Index apart = kRows / form.per_word;
      std::vector<std::byte> words(static_cast<std::size_t>(apart * kCols * form.word_bytes));
      for (Index r = 0; r < kRows; ++r)
        for (Index c = 0; c < kCols; ++c) {
          const Index shift = form.bits * (form.per_word - 1 - r / apart);
          for (int byte = 0; byte < form.word_bytes; ++byte)
            words[static_cast<std::size_t>((r % apart * kCols + c) * form.word_bytes + byte)] |=
                std::byte(static_cast<std::uint64_t>(codes.at(r, c)) << shift >> 8 * byte & 255U);
        }
      std::vector<std::uint16_t> scales, zeros;
      for (Index i = 0; i < kRows; ++i) {
        scales.push_back(to_bf16(static_cast<float>(random() % 1000 + 1) / 4096));
        zeros.push_back(to_bf16(static_cast<float>(random() % 1000) / 64));
      }
      PlaneMatrix m{.rows = kRows, .cols = kCols, .words = words.data()};
      m.word_bytes = form.word_bytes;
      m.bits = form.bits;
      m.per_word = form.per_word;
      m.word_rows = apart;
      m.scales = reinterpret_cast<const std::byte*>(scales.data());
      m.zeros = reinterpret_cast<const std::byte*>(zeros.data());
      m.dtype = DType::bf16;
      m.rows_are_groups = by_rows;
      std::vector<float> want;
      for (Index r = 0; r < kRows; ++r)
        for (Index c = 0; c < kCols; ++c) {
          const auto g = static_cast<std::size_t>(by_rows ? r : c);
          const auto code = static_cast<float>(codes.at(r, c));
          const float difference = from_bf16(to_bf16(code - from_bf16(zeros[g])));
          want.push_back(from_bf16(to_bf16(difference * from_bf16(scales[g]))));
        }
      expect_values(m, want);
    }
}

TEST(Decode, words_of_rows_need_not_be_full) {
  std::mt19937 random(3);
  Integers m(5, 21, 7, 4, random);
  const auto order = in_order(8);
  const auto words = packed(m.codes, 4, false, order), zero_words = packed(m.zeros, 4, true, order);
  CodedMatrix matrix{.rows = 5, .cols = 21, .codes = {}};
  matrix.codes = {.words = bytes_of(words), .row_stride = 3, .col_stride = 1};
  matrix.zeros = PackedIntegers{
      .words = bytes_of(zero_words), .along_rows = true, .row_stride = 3, .col_stride = 1};
  set_scales(matrix, m, 3, 7);
  expect_values(matrix, m.values(0));
}

PackedIntegers signed_bytes(const std::vector<std::int8_t>& codes, Index cols) {
  return {.words = reinterpret_cast<const std::byte*>(codes.data()),
          .bits = 8,
          .word_bytes = 1,
          .is_signed = true,
          .row_stride = cols,
          .col_stride = 1};
}

TEST(Decode, bytes_are_signed_and_a_factor_is_multiplied_last) {
  const std::vector<std::int8_t> codes = {-128, -1, 0, 1, 127, 100};
  const std::vector<float> scales = {0.3F, 0.7F};
  CodedMatrix matrix{.rows = 2, .cols = 3, .codes = {}};
  matrix.codes = signed_bytes(codes, 3);
  matrix.scales = reinterpret_cast<const std::byte*>(scales.data());
  matrix.scale_dtype = DType::f32;
  matrix.scale_row = 1;
  matrix.group_cols = 3;
  matrix.factor = 1 / 127.0F;
  std::vector<float> want;
  for (std::size_t i = 0; i < 6; ++i)
    want.push_back(static_cast<float>(codes[i]) * scales[i / 3] * (1 / 127.0F));
  expect_values(matrix, want);
}

TEST(Decode, scales_may_be_halves) {
  const std::vector<std::int8_t> codes = {3, -5};
  const std::vector<std::uint16_t> scales = {to_bf16(0.1F), to_bf16(0.2F)};
  CodedMatrix matrix{.rows = 1, .cols = 2, .codes = {}};
  matrix.codes = signed_bytes(codes, 2);
  matrix.scales = reinterpret_cast<const std::byte*>(scales.data());
  matrix.scale_dtype = DType::bf16;
  matrix.scale_group = 1;
  matrix.groups = 2;
  matrix.group_cols = 1;
  expect_values(matrix, {3 * from_bf16(scales[0]), -5 * from_bf16(scales[1])});
}

TEST(Decode, codes_may_be_small_floats_whose_scales_belong_to_blocks_of_rows) {
  std::mt19937 random(5);
  for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2}) {
    Grid<std::uint8_t> codes(6, 8);
    for (auto& code : codes.values) code = static_cast<std::uint8_t>(random() % 100);
    Grid<float> scales = random_scales(2, 2, random), offsets = random_scales(2, 2, random);
    CodedMatrix matrix{.rows = 6, .cols = 8, .codes = {}, .numbers = &code_values(dtype)};
    matrix.codes = {
        .words = codes.bytes(), .bits = 8, .word_bytes = 1, .row_stride = 8, .col_stride = 1};
    matrix.scales = scales.bytes();
    matrix.scale_dtype = DType::f32;
    matrix.scale_row = 2;
    matrix.scale_group = 1;
    matrix.scale_factor = 0.3F;
    matrix.group_rows = 3;
    matrix.groups = 2;
    matrix.group_cols = 4;
    matrix.offsets = offsets.bytes();
    std::vector<float> want;
    for (Index r = 0; r < 6; ++r)
      for (Index c = 0; c < 8; ++c) {
        // Sign 0; 2^(exponent - bias) * 1.mantissa, or without an exponent 2^(1 - bias) *
        // 0.mantissa.
        const int mantissa_bits = dtype == DType::f8_e4m3 ? 3 : 2,
                  bias = 7 + 8 * (3 - mantissa_bits);
        const int code = codes.at(r, c), exponent = code >> mantissa_bits;
        const int mantissa = code & ((1 << mantissa_bits) - 1), implied = exponent > 0 ? 1 : 0;
        const float number = std::ldexp(static_cast<float>((implied << mantissa_bits) + mantissa),
                                        std::max(exponent, 1) - bias - mantissa_bits);
        const float scaled = number * (scales.at(r / 3, c / 4) * 0.3F);
        want.push_back(scaled + offsets.at(r / 3, c / 4));
      }
    expect_values(matrix, want);
  }
}

TEST(Decode, scales_of_a_byte_may_be_swizzled) {
  std::mt19937 random(6);
  constexpr Index kRows = 130, kGroups = 5, kBlock = 4;
  for (const DType dtype : {DType::f8_e8m0, DType::f8_e4m3}) {
    Grid<std::uint8_t> codes(kRows, kGroups * kBlock / 2);
    for (auto& code : codes.values) code = static_cast<std::uint8_t>(random());
    // Two tiles down and two across.
    std::vector<std::uint8_t> scales(std::size_t{4} * kScaleTileBytes, 0);
    CodedMatrix matrix{.rows = kRows, .cols = kGroups * kBlock, .codes = {}};
    matrix.numbers = &code_values(DType::f4);
    matrix.codes = {.words = codes.bytes(),
                    .word_bytes = 1,
                    .row_stride = kGroups * kBlock / 2,
                    .col_stride = 1};
    matrix.scales = reinterpret_cast<const std::byte*>(scales.data());
    matrix.scale_dtype = dtype;
    matrix.swizzled = true;
    matrix.groups = kGroups;
    matrix.group_cols = kBlock;
    constexpr std::array<float, 8> kE2m1 = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    std::vector<float> want;
    for (Index r = 0; r < kRows; ++r)
      for (Index c = 0; c < kGroups * kBlock; ++c) {
        const Index g = c / kBlock;
        // Neighbouring rows and groups have different scales: powers of two, which both dtypes
        // have.
        const auto power = static_cast<int>((r + g) % 3);
        const int stored = dtype == DType::f8_e8m0 ? 127 + power : (7 + power) << 3;
        const Index tile = r / 128 * 2 + g / 4, row = r % 128;
        scales[static_cast<std::size_t>(tile * 512 + row % 32 * 16 + row / 32 * 4 + g % 4)] =
            static_cast<std::uint8_t>(stored);
        const unsigned pair = codes.at(r, c / 2), code = c % 2 == 0 ? pair & 15U : pair >> 4;
        const float number = kE2m1[code & 7U] * (code > 7 ? -1.0F : 1.0F);
        want.push_back(std::ldexp(number, power));
      }
    expect_values(matrix, want);
  }
}

TEST(Decode, a_table_has_its_first_code_in_the_high_half) {
  std::mt19937 random(4);
  for (const bool nested : {false, true}) {
    constexpr Index kCount = 9001, kBlock = 64, kBlocks = (kCount + kBlock - 1) / kBlock;
    TableMatrix m{.count = kCount, .block = kBlock};
    for (float& entry : m.table) entry = static_cast<float>(random() % 200) / 100 - 1;
    std::vector<std::uint8_t> codes((kCount + 1) / 2), coded(kBlocks);
    for (auto& code : codes) code = static_cast<std::uint8_t>(random());
    for (auto& code : coded) code = static_cast<std::uint8_t>(random());
    Grid<float> scales = random_scales(1, kBlocks, random), table = random_scales(1, 256, random);
    m.codes = reinterpret_cast<const std::byte*>(codes.data());
    m.scales = nested ? reinterpret_cast<const std::byte*>(coded.data()) : scales.bytes();
    if (nested) m.coded = {table.bytes(), scales.bytes(), 16, 0.25F};
    std::vector<float> want;
    for (Index i = 0; i < kCount; ++i) {
      const Index block = i / kBlock;
      const float inner = table.at(0, coded[static_cast<std::size_t>(block)]);
      const float scale = nested ? inner * scales.at(0, block / 16) + 0.25F : scales.at(0, block);
      const unsigned pair = codes[static_cast<std::size_t>(i / 2)];
      want.push_back(m.table[i % 2 == 0 ? pair >> 4 : pair & 15U] * scale);
    }
    expect_values(m, want);
  }
}

}  // namespace
}  // namespace reshard
