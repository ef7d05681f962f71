// SPDX-License-Identifier: Apache-2.0
// Protects: a block that is cut into parts, each quantised alone with the largest of the parts'
// amaxes, has the bytes of the block quantised whole.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "reshard/transform/quantise.h"
#include "reshard/transform/quantise_cases_testutil.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

/// Columns that share a byte, or a word of packed integers.
Index columns_together(const QuantFormat& format) {
  if (has_packed_integers(format)) return 32 / bits(format.data);
  return bits(format.data) == 4 ? 2 : 1;
}

/// [0, size) in a few parts that begin at multiples of `step`.
std::vector<Interval> random_parts(Index size, Index step) {
  std::vector<Index> borders{0, size};
  for (int i = *rc::gen::inRange(0, 4); i > 0; --i)
    borders.push_back(*rc::gen::inRange<Index>(0, size / step + 1) * step);
  std::ranges::sort(borders);
  std::vector<Interval> parts;
  for (std::size_t i = 1; i < borders.size(); ++i)
    if (borders[i - 1] < borders[i]) parts.emplace_back(borders[i - 1], borders[i]);
  return parts;
}

/// A part up to the first line of the grid, and the rest, which has a grid of its own.
std::vector<Interval> up_to_a_line(Interval part, Index block) {
  const Index line = std::min(part.end(), (part.begin() + block - 1) / block * block);
  if (line == part.begin() || line == part.end()) return {part};
  return {Interval{part.begin(), line}, Interval{line, part.end()}};
}

/// Quantises a matrix part by part.
class InParts {
 public:
  InParts(const QuantFormat& format, const FloatMatrix& whole)
      : format_(format),
        whole_(whole),
        down_(format.block_rows == 0 ? whole.rows : format.block_rows),
        across_(format.block_cols == 0 ? whole.cols : format.block_cols),
        table_cols_(scale_cols(format, whole.cols)),
        table_(static_cast<std::size_t>(scale_rows(format, whole.rows) * table_cols_)) {}

  void cut(const std::vector<Interval>& rows, const std::vector<Interval>& cols) {
    for (const Interval r : rows)
      for (const Interval c : cols)
        for (const Interval down : up_to_a_line(r, down_))
          for (const Interval across : up_to_a_line(c, across_)) parts_.push_back({down, across});
  }

  QuantBytes run() {
    for (const Part& part : parts_) add_amaxes(part);
    for (const float amax : table_) matrix_ = larger(matrix_, amax);
    QuantBytes out = quant_bytes(format_, whole_.rows, whole_.cols, std::byte{0x5a});
    for (const Part& part : parts_) quantise_part(part, out);
    return out;
  }

 private:
  struct Part {
    Interval rows, cols;
  };
  static float larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }

  FloatMatrix values_of(const Part& part) const {
    const Index width = whole_.dtype == DType::f32 ? 4 : 2;
    return {whole_.data + part.rows.begin() * whole_.row_bytes + part.cols.begin() * width,
            whole_.dtype, part.rows.size(), part.cols.size(), whole_.row_bytes};
  }
  Index first_block(const Part& part) const {
    return part.rows.begin() / down_ * table_cols_ + part.cols.begin() / across_;
  }

  void add_amaxes(const Part& part) {
    const Index rows = scale_rows(format_, part.rows.size()),
                cols = scale_cols(format_, part.cols.size());
    std::vector<float> found(static_cast<std::size_t>(rows * cols), -1.0F);
    block_amaxes(values_of(part), format_, 0, part.rows.size(),
                 {reinterpret_cast<std::byte*>(found.data()), cols * 4});
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < cols; ++c) {
        float& amax = table_[static_cast<std::size_t>(first_block(part) + r * table_cols_ + c)];
        amax = larger(amax, found[static_cast<std::size_t>(r * cols + c)]);
      }
  }

  void quantise_part(const Part& part, QuantBytes& out) {
    QuantMatrix to = view(format_, whole_.rows, whole_.cols, out);
    const Index scale = bits(format_.scale) / 8, block = first_block(part);
    to.data += part.rows.begin() * to.row_bytes + size_of(format_.data, part.cols.begin());
    to.scales += block / table_cols_ * to.scale_row_bytes + block % table_cols_ * scale;
    to.rows = part.rows.size();
    to.cols = part.cols.size();
    quantise_rows(
        values_of(part), to, 0, to.rows, matrix_,
        BlockAmaxes{reinterpret_cast<std::byte*>(&table_[static_cast<std::size_t>(block)]),
                    table_cols_ * 4});
  }

  const QuantFormat& format_;
  FloatMatrix whole_;
  Index down_, across_, table_cols_;
  std::vector<float> table_;  ///< by block of the whole matrix.
  float matrix_ = 0;
  std::vector<Part> parts_;
};

RC_GTEST_PROP(QuantisedParts, have_the_bytes_of_the_whole_matrix, ()) {
  const Index rows = *rc::gen::inRange<Index>(1, 300), groups = *rc::gen::inRange<Index>(1, 45);
  const auto dtype = *rc::gen::element(DType::bf16, DType::f16, DType::f32);
  const auto values = random_values(rows * groups * 8, *rc::gen::arbitrary<std::uint64_t>());
  PlainMatrix plain(dtype, rows, groups * 8, values);
  for (const QuantFormat& format : quant_formats()) {
    // A tile of swizzled scales belongs to one rank.
    if (format.order == ScaleOrder::swizzled) continue;
    const auto row_parts = random_parts(rows, 1),
               col_parts = random_parts(groups * 8, columns_together(format));
    for (const SimdLevel level : available_simd_levels()) {
      const KernelScope scope({level, true});
      InParts parts(format, plain.view());
      parts.cut(row_parts, col_parts);
      RC_ASSERT(parts.run() == quantised(format, plain));
    }
  }
}

TEST(QuantisedParts, saturate_above_an_amax_that_is_too_small_and_keep_their_nans) {
  std::vector<float> values(128, 1.0F);
  values[5] = 1000.0F;
  values[70] = std::numeric_limits<float>::quiet_NaN();
  const QuantFormat format = *quant_format_from_name("fp8_group");
  PlainMatrix plain(DType::bf16, 1, 128, values);
  float amax = 448.0F;  // A scale of 1.
  for (const SimdLevel level : available_simd_levels()) {
    const KernelScope scope({level, true});
    QuantBytes out = quant_bytes(format, 1, 128, std::byte{0});
    quantise_rows(plain.view(), view(format, 1, 128, out), 0, 1, 0,
                  BlockAmaxes{reinterpret_cast<std::byte*>(&amax), 4});
    EXPECT_EQ(std::to_integer<unsigned>(out.data[0]), 0x38) << name(level);
    EXPECT_EQ(std::to_integer<unsigned>(out.data[5]), 0x7e) << name(level);
    EXPECT_EQ(std::to_integer<unsigned>(out.data[70]) & 0x7fU, 0x7fU) << name(level);
  }
}

TEST(BlockAmaxes, of_any_rows_are_those_of_all_rows) {
  const QuantFormat format = *quant_format_from_name("fp8_block");
  PlainMatrix plain(DType::f32, 300, 200, random_values(300 * 200, 7));
  std::vector<float> all(6), some(6);
  const auto at = [](std::vector<float>& floats) {
    return BlockAmaxes{reinterpret_cast<std::byte*>(floats.data()), 8};
  };
  block_amaxes(plain.view(), format, 0, 300, at(all));
  for (const Interval rows : {Interval{256, 300}, Interval{0, 128}, Interval{128, 256}})
    block_amaxes(plain.view(), format, rows.begin(), rows.end(), at(some));
  EXPECT_EQ(std::memcmp(all.data(), some.data(), 24), 0);
}

}  // namespace
}  // namespace reshard
