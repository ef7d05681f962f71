// SPDX-License-Identifier: Apache-2.0
// The values of weights whose form is read but not written: small numbers with zero points, packed
// in an order of their own, and entries of a table. Formats that are also written are in
// quantise.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A matrix of codes, small integers, several in a word, as quantisers pack them. Borrows its
/// words.
struct PackedIntegers {
  const std::byte* words = nullptr;  ///< little-endian; no alignment is required.
  int bits = 4;                      ///< of a code: 2, 3, 4 or 8.
  int word_bytes = 4;                ///< 1 or 4.
  bool is_signed = false;            ///< two's complement.
  /// True if a word holds consecutive rows of a column, false if consecutive columns of a row.
  bool along_rows = false;
  Index row_stride = 0, col_stride = 0;  ///< words from a row, or column, of words to the next.
  /// The place in its word of each of consecutive integers; place 0 is in the lowest bits. Not for
  /// integers that cross words.
  std::array<std::uint8_t, 16> place = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

  /// True for 3 bits: integer i has bits [3 i, 3 i + 3) of consecutive words, the lowest first.
  bool crosses_words() const { return 8 * word_bytes % bits != 0; }
  /// @pre !crosses_words()
  int per_word() const { return 8 * word_bytes / bits; }
  int at(Index row, Index col) const;
};

/// The numbers that codes stand for, by code.
using CodeValues = std::array<float, 256>;
/// The numbers of all codes of f4 (E2M1), f8_e4m3 or f8_e5m2. The table lives as long as the
/// program.
const CodeValues& code_values(DType dtype);

/// Weights [rows, cols] of (number - zero point) * scale * factor + offset, where a code's number
/// is itself or what a table says. Zero points, scales and offsets belong to rows and a group of
/// columns. Borrows its parts.
struct CodedMatrix {
  Index rows = 0, cols = 0;
  PackedIntegers codes;
  const CodeValues* numbers = nullptr;       ///< null: the codes are the numbers.
  std::optional<PackedIntegers> zeros = {};  ///< [rows, groups]; none: all are 0.
  int zero_offset = 0;                       ///< added to every zero point.
  const std::byte* scales = nullptr;         ///< no alignment is required.
  DType scale_dtype = DType::f16;            ///< f32, bf16, f16, f8_e4m3 or f8_e8m0.
  Index scale_row = 0,
        scale_group = 0;   ///< elements from the scale of a row, or group, to the next.
  bool swizzled = false;   ///< scales are at swizzled_scale_offset() instead. @pre of one byte
  float scale_factor = 1;  ///< multiplied with each scale first.
  Index group_rows = 1;    ///< rows that share zero points, scales and offsets.
  Index groups = 1;
  Index group_cols = 0;                     ///< columns of a group; the last may have fewer.
  const std::byte* group_of_col = nullptr;  ///< I32 [cols], each below `groups`; null: in order.
  float factor = 1;                         ///< multiplied last.
  const std::byte* offsets = nullptr;       ///< dtype and places of scales; null: all are 0.
};

/// Weights of table[code] * scale, where a scale belongs to consecutive elements of the whole
/// tensor: bitsandbytes' 4-bit forms. Borrows its parts.
struct TableMatrix {
  Index count = 0;                   ///< elements.
  const std::byte* codes = nullptr;  ///< 4 bits each, the first one in the high half of a byte.
  std::array<float, 16> table{};
  Index block = 64;                   ///< elements of a scale.
  const std::byte* scales = nullptr;  ///< F32, or, if they are themselves coded, U8.
  /// How scales are coded: coded_table[code] * scale of the scale's block + offset.
  struct CodedScales {
    const std::byte* table = nullptr;   ///< F32 [256].
    const std::byte* scales = nullptr;  ///< F32.
    Index block = 256;                  ///< scales of a scale.
    float offset = 0;
  };
  std::optional<CodedScales> coded = {};
};

/// HQQ's weights, (code - zero point) * scale: the difference and the product are each rounded to
/// the dtype of the scales. The elements, in row-major order, form a matrix [rows, cols] whose rows
/// or columns are groups. A word holds codes of one column, from rows that are `word_rows` apart;
/// the first of them is in the highest of the bits used. Borrows its parts.
struct PlaneMatrix {
  Index rows = 0, cols = 0;
  const std::byte* words = nullptr;  ///< [word_rows, cols], little-endian.
  int word_bytes = 1;                ///< 1 or 4.
  int bits = 4;                      ///< of a code: 1, 2, 3, 4 or 8.
  int per_word = 2;                  ///< codes of a word.
  Index word_rows = 0;               ///< rows / per_word, rounded up.
  const std::byte* scales = nullptr;
  const std::byte* zeros = nullptr;  ///< zero points, of the dtype of scales.
  DType dtype = DType::f16;          ///< f32, bf16 or f16.
  bool rows_are_groups = true;       ///< a scale for each row, else for each column.
};

using CodedTensor = std::variant<CodedMatrix, TableMatrix, PlaneMatrix>;

/// Checks the values that decode() relies on. Errors, which name the tensor: a column without a
/// group; in GPTQ's first format a zero point of 0, which programs read differently.
Result<> check_codes(std::string_view name, const CodedTensor& tensor);

/// Writes elements [first, first + count) of a tensor, in row-major order. Products are computed in
/// F32 and rounded once to `to`, but for those of a PlaneMatrix; number minus zero point is exact.
/// Thread-safe for disjoint outputs.
///
/// @pre check_codes() succeeds; `to` is f32, bf16 or f16; the range is within the tensor; its parts
/// have the sizes that follow from their declarations
void decode(const CodedTensor& tensor, Index first, Index count, DType to, std::byte* out);

}  // namespace reshard
