// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/convert_arithmetic.h"
#include "reshard/transform/quantise_arithmetic.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard {
namespace {

template <class T>
T load(const std::byte* from, Index i) {
  T value;
  std::memcpy(&value, from + i * Index{sizeof(T)}, sizeof value);
  return value;
}

std::uint32_t word(const PackedIntegers& p, Index i) {
  if (p.word_bytes == 1) return load<std::uint8_t>(p.words, i);
  return load<std::uint32_t>(p.words, i);
}

int with_sign(const PackedIntegers& p, std::uint64_t bits) {
  const auto code = static_cast<int>(bits & ((1U << p.bits) - 1));
  return p.is_signed && code >= 1 << (p.bits - 1) ? code - (1 << p.bits) : code;
}

/// The integer at a place of a word.
int integer(const PackedIntegers& p, std::uint32_t word, Index lane) {
  return with_sign(p, word >> p.bits * p.place[static_cast<std::size_t>(lane)]);
}

/// Integer i of words that are `stride` apart. @pre p.crosses_words()
int crossing_integer(const PackedIntegers& p, Index first, Index stride, Index i) {
  const Index width = Index{8} * p.word_bytes, at = i * p.bits / width, shift = i * p.bits % width;
  std::uint64_t bits = word(p, first + at * stride);
  if (shift + p.bits > width) bits |= std::uint64_t{word(p, first + (at + 1) * stride)} << width;
  return with_sign(p, bits >> shift);
}

/// @pre dtype is f32, bf16 or f16
float load_float(DType dtype, const std::byte* from, Index i) {
  if (dtype == DType::f32) return load<float>(from, i);
  const auto bits = load<std::uint16_t>(from, i);
  return dtype == DType::bf16 ? from_bf16(bits) : from_f16(bits);
}

float rounded_to(DType dtype, float value) {
  if (dtype == DType::f32) return value;
  return dtype == DType::bf16 ? from_bf16(to_bf16(value)) : from_f16(to_f16(value));
}

void convert_floats(const std::vector<float>& values, DType to, std::byte* out) {
  const auto* from = reinterpret_cast<const std::byte*>(values.data());
  const auto count = static_cast<Index>(values.size());
  if (to == DType::f32)
    std::memcpy(out, from, values.size() * sizeof(float));
  else
    convert_values({{DType::f32, ValueMap::identity}, {to, ValueMap::identity}}, from, out, count);
}

/// Decodes rows of a matrix, one after another.
class RowDecoder {
 public:
  explicit RowDecoder(const CodedMatrix& m)
      : m_(m),
        scales_(static_cast<std::size_t>(m.groups)),
        zeros_(scales_.size()),
        offsets_(scales_.size()) {}

  /// Columns [begin, end) of a row.
  void decode(Index row, Index begin, Index end, DType to, std::byte* out) {
    take_groups(row);
    values_.resize(static_cast<std::size_t>(end - begin));
    if (m_.codes.crosses_words())
      take_one_by_one(row, begin);
    else
      m_.codes.along_rows ? take_column_words(row, begin) : take_row_words(row, begin, end);
    for (Index col = begin; col < end;) {
      const Index stop = m_.group_of_col != nullptr ? col + 1 : end_of_group(col, end);
      const auto g = static_cast<std::size_t>(group_of(col));
      for (; col < stop; ++col) {
        float& value = values_[static_cast<std::size_t>(col - begin)];
        value = (value - zeros_[g]) * scales_[g] * m_.factor;
        if (m_.offsets != nullptr) value += offsets_[g];
      }
    }
    convert_floats(values_, to, out);
  }

 private:
  Index group_of(Index col) const {
    return m_.group_of_col != nullptr ? load<std::int32_t>(m_.group_of_col, col)
                                      : col / m_.group_cols;
  }
  Index end_of_group(Index col, Index end) const {
    return std::min(end, (col / m_.group_cols + 1) * m_.group_cols);
  }

  void take_groups(Index of_row) {
    const Index row = of_row / m_.group_rows;
    for (Index g = 0; g < m_.groups; ++g) {
      const auto i = static_cast<std::size_t>(g);
      scales_[i] = scale(m_.scales, row, g) * m_.scale_factor;
      zeros_[i] = static_cast<float>((m_.zeros ? m_.zeros->at(row, g) : 0) + m_.zero_offset);
      if (m_.offsets != nullptr) offsets_[i] = scale(m_.offsets, row, g);
    }
  }

  float scale(const std::byte* from, Index row, Index g) const {
    const Index at = m_.swizzled ? swizzled_scale_offset(row, g, m_.groups)
                                 : row * m_.scale_row + g * m_.scale_group;
    switch (m_.scale_dtype) {
      case DType::f8_e4m3: return small_to_float(CodeKind::e4m3, load<std::uint8_t>(from, at));
      case DType::f8_e8m0: return e8m0_to_float(load<std::uint8_t>(from, at));
      default: return load_float(m_.scale_dtype, from, at);
    }
  }

  float number(int code) const {
    return m_.numbers != nullptr ? (*m_.numbers)[static_cast<std::size_t>(code)]
                                 : static_cast<float>(code);
  }

  void take_one_by_one(Index row, Index begin) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      values_[i] = number(m_.codes.at(row, begin + static_cast<Index>(i)));
  }

  void take_row_words(Index row, Index begin, Index end) {
    const PackedIntegers& p = m_.codes;
    const Index k = p.per_word();
    for (Index col = begin; col < end;) {
      const std::uint32_t w = word(p, row * p.row_stride + col / k * p.col_stride);
      for (const Index stop = std::min(end, (col / k + 1) * k); col < stop; ++col)
        values_[static_cast<std::size_t>(col - begin)] = number(integer(p, w, col % k));
    }
  }

  void take_column_words(Index row, Index begin) {
    const PackedIntegers& p = m_.codes;
    const Index k = p.per_word(), first = row / k * p.row_stride + begin * p.col_stride;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::uint32_t w = word(p, first + static_cast<Index>(i) * p.col_stride);
      values_[i] = number(integer(p, w, row % k));
    }
  }

  const CodedMatrix& m_;
  std::vector<float> scales_, zeros_, offsets_;  ///< of the row, by group.
  std::vector<float> values_;
};

void decode_part(const CodedMatrix& m, Index first, Index count, DType to, std::byte* out) {
  RowDecoder decoder(m);
  const Index bytes = bits(to) / 8;
  for (Index at = first; at < first + count;) {
    const Index row = at / m.cols, col = at % m.cols;
    const Index n = std::min(m.cols - col, first + count - at);
    decoder.decode(row, col, col + n, to, out + (at - first) * bytes);
    at += n;
  }
}

float scale_of(const TableMatrix& m, Index block) {
  if (!m.coded) return load<float>(m.scales, block);
  const auto code = load<std::uint8_t>(m.scales, block);
  const float scale =
      load<float>(m.coded->table, code) * load<float>(m.coded->scales, block / m.coded->block);
  return scale + m.coded->offset;
}

void decode_part(const TableMatrix& m, Index first, Index count, DType to, std::byte* out) {
  constexpr Index kAtOnce = 4096;
  std::vector<float> values;
  const Index bytes = bits(to) / 8;
  for (Index at = first; at < first + count;) {
    const Index n = std::min({kAtOnce, first + count - at});
    values.resize(static_cast<std::size_t>(n));
    float scale = 0;
    for (Index i = at; i < at + n; ++i) {
      if (i == at || i % m.block == 0) scale = scale_of(m, i / m.block);
      const auto pair = std::to_integer<unsigned>(m.codes[i / 2]);
      const unsigned code = i % 2 == 0 ? pair >> 4 : pair & 15U;
      values[static_cast<std::size_t>(i - at)] = m.table[code] * scale;
    }
    convert_floats(values, to, out + (at - first) * bytes);
    at += n;
  }
}

void decode_part(const PlaneMatrix& m, Index first, Index count, DType to, std::byte* out) {
  constexpr Index kAtOnce = 4096;
  const Index bytes = bits(to) / 8;
  const std::uint32_t mask = (1U << m.bits) - 1;
  std::vector<float> values;
  for (Index at = first; at < first + count;) {
    const Index n = std::min({kAtOnce, first + count - at});
    values.resize(static_cast<std::size_t>(n));
    for (Index i = at; i < at + n; ++i) {
      const Index row = i / m.cols, col = i % m.cols, plane = row / m.word_rows;
      const Index word = row % m.word_rows * m.cols + col;
      const std::uint32_t all = m.word_bytes == 1 ? load<std::uint8_t>(m.words, word)
                                                  : load<std::uint32_t>(m.words, word);
      const auto code = static_cast<float>(all >> m.bits * (m.per_word - 1 - plane) & mask);
      const Index group = m.rows_are_groups ? row : col;
      const float difference = rounded_to(m.dtype, code - load_float(m.dtype, m.zeros, group));
      values[static_cast<std::size_t>(i - at)] =
          rounded_to(m.dtype, difference * load_float(m.dtype, m.scales, group));
    }
    convert_floats(values, to, out + (at - first) * bytes);
    at += n;
  }
}

}  // namespace

const CodeValues& code_values(DType dtype) {
  const auto filled = [](auto value_of) {
    CodeValues values{};
    for (std::uint32_t code = 0; code < values.size(); ++code) values[code] = value_of(code);
    return values;
  };
  static const CodeValues e2m1 =
      filled([](std::uint32_t code) { return small_to_float(CodeKind::e2m1, code & 15U); });
  static const CodeValues e4m3 =
      filled([](std::uint32_t code) { return small_to_float(CodeKind::e4m3, code); });
  // An E5M2 code is the upper byte of an F16.
  static const CodeValues e5m2 =
      filled([](std::uint32_t code) { return from_f16(static_cast<std::uint16_t>(code << 8U)); });
  RESHARD_CHECK(dtype == DType::f4 || dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2);
  return dtype == DType::f4 ? e2m1 : dtype == DType::f8_e4m3 ? e4m3 : e5m2;
}

int PackedIntegers::at(Index row, Index col) const {
  const Index i = along_rows ? row : col, stride = along_rows ? row_stride : col_stride;
  const Index first = along_rows ? col * col_stride : row * row_stride;
  if (crosses_words()) return crossing_integer(*this, first, stride, i);
  const Index k = per_word();
  return integer(*this, word(*this, first + i / k * stride), i % k);
}

Result<> check_codes(std::string_view name, const CodedTensor& tensor) {
  const auto* m = std::get_if<CodedMatrix>(&tensor);
  if (m == nullptr) return {};
  for (Index col = 0; m->group_of_col != nullptr && col < m->cols; ++col)
    if (const auto group = load<std::int32_t>(m->group_of_col, col);
        group < 0 || group >= m->groups)
      return fail(Code::corrupt,
                  fmt::format("'{}': column {} is in group {} of {}", name, col, group, m->groups));
  // The zero point 0 is stored as -1, whose bits are those of the largest number.
  const int most = (1 << m->codes.bits) - 1;
  if (!m->zeros || m->zeros->is_signed || m->zero_offset == 0) return {};
  for (Index row = 0; row < m->rows; ++row)
    for (Index g = 0; g < m->groups; ++g)
      if (m->zeros->at(row, g) == most)
        return fail(Code::unsupported,
                    fmt::format("'{}': the zero point of row {} is stored as {}, which is 0 or {}: "
                                "programs that read checkpoint_format gptq differ; write it as "
                                "gptq_v2",
                                name, row, most, most + 1));
  return {};
}

void decode(const CodedTensor& tensor, Index first, Index count, DType to, std::byte* out) {
  std::visit([&](const auto& matrix) { decode_part(matrix, first, count, to, out); }, tensor);
}

}  // namespace reshard
