// SPDX-License-Identifier: Apache-2.0
// Rows of matrices in any cut, order and level give the bytes of the host's functions, and no other
// byte is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/tiles/matrix_runner.h"
#include "reshard/transform/quantise_cases_testutil.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard::cuda {
namespace {

std::string error_of(const Result<>& result) { return result ? "" : result.error().message; }

/// Memory that the GPU reaches, and what it should hold.
class Mirror {
 public:
  /// Room for bytes at a multiple of `unit`, after bytes that nobody may write. Its offset.
  Index add(Index bytes, Index unit) {
    const Index at = (std::ssize(wanted_) + 64 + unit - 1) / unit * unit;
    wanted_.resize(static_cast<std::size_t>(at + bytes + 64), std::byte{0xa5});
    return at;
  }
  void allocate(const std::shared_ptr<const Device>& gpu, bool pinned) {
    gpu_ = gpu;
    const auto size = std::ssize(wanted_);
    held_ = (pinned ? Buffer::pinned(gpu, size) : Buffer::on_device(gpu, size)).value();
  }
  void upload() { write_to_gpu(gpu_, held_.data(), wanted_); }
  bool holds_what_is_wanted() const {
    return read_from_gpu(gpu_, held_.data(), wanted_.size()) == wanted_;
  }
  std::byte* wanted(Index at) { return wanted_.data() + at; }
  std::byte* held(Index at) const { return held_.data() + at; }

 private:
  std::shared_ptr<const Device> gpu_;
  std::vector<std::byte> wanted_;
  Buffer held_;
};

struct Rows {
  Index begin = 0, end = 0;
};

/// A matrix whose rows are worked on in random parts.
class CutMatrix {
 public:
  CutMatrix(const QuantFormat& f, DType dtype, Index rows, Index cols, std::uint64_t seed)
      : format_(f), dtype_(dtype), rows_(rows), cols_(cols), random_(seed) {
    const Index width = dtype == DType::f32 ? 4 : 2;
    const Index data = size_of(f.data, cols), unit = bits(f.scale) / 8;
    const bool aligned = below(2) == 0;
    const auto stride = [&](Index bytes, Index of) {
      return aligned ? (bytes + 15) / 16 * 16 : bytes + below(4) * of;
    };
    values_row_ = stride(cols * width, width);
    data_row_ = stride(data, 1);
    scales_row_ = is_swizzled() ? scale_bytes(f, kScaleTileRows, cols)
                                : stride(size_of(f.scale, scale_cols(f, cols)), unit);
    const Index down = step() == 0 ? 1 : (rows + step() - 1) / step();
    values_ = memory_.add(rows * values_row_, 16) + (aligned ? 0 : width);
    memory_.add(16, 1);
    data_ = memory_.add(rows * data_row_, 16);
    scales_ = memory_.add(down * scales_row_, unit);
    factor_ = memory_.add(4, 4);
    memory_.allocate(gpu_, false);
    parts_ = floats_.add(4 * (2 * rows + 1), 4);  // Half of the ranges are empty at most.
    halves_ = floats_.add(8, 4);
    amax_ = floats_.add(4, 4);
    floats_.allocate(gpu_, seed % 2 == 0);
  }

  void write_values(PlainMatrix plain) {
    const FloatMatrix from = plain.view(), to = values(memory_.wanted(values_));
    for (Index r = 0; r < rows_ && cols_ > 0; ++r)
      std::memcpy(to.data + r * to.row_bytes, from.data + r * from.row_bytes,
                  static_cast<std::size_t>(size_of(dtype_, cols_)));
    memory_.upload();
    floats_.upload();
  }

  /// The amax of random rows, then of halves of these, then of all.
  void find_amax() {
    const std::vector<Rows> cut = random_cut(1);
    const Index n = std::ssize(cut), half = n / 2;
    Index next = parts_;
    run(MatrixWork::amax, cut, [&](const Rows& rows, MatrixSlice& slice) {
      slice.amax = reinterpret_cast<float*>(floats_.held(next));
      write_amax(next, amax(values_of(rows)));
      next += 4;
    });
    MaximumTable table;
    const auto add = [&](Index from, Index count, Index to) {
      ASSERT_EQ(error_of(table.add(reinterpret_cast<float*>(floats_.held(from)), count,
                                   reinterpret_cast<float*>(floats_.held(to)))),
                "");
      write_amax(to, amax({floats_.wanted(from), DType::f32, 1, count, 4 * count}));
    };
    add(parts_, half, halves_);
    add(parts_ + 4 * half, n - half, halves_ + 4);
    table.end_level();
    table.end_level();
    add(halves_, 2, amax_);
    table.end_level();
    const auto runner = MaximumRunner::make(gpu_, table, static_cast<int>(below(3)));
    ASSERT_TRUE(runner) << runner.error().message;
    for (std::size_t level = 0; level < 3; ++level)
      ASSERT_EQ(error_of(runner->launch(stream_, level)), "");
    ASSERT_NO_FATAL_FAILURE(check());
    float found = 0;
    std::memcpy(&found, floats_.wanted(amax_), sizeof found);
    ASSERT_EQ(float_bits(found), float_bits(amax(values_of({0, rows_}))));
  }

  void quantise_rows() {
    float most = 0;
    std::memcpy(&most, floats_.wanted(amax_), sizeof most);
    run(MatrixWork::quantise, random_cut(step_of_cut()), [&](const Rows& rows, MatrixSlice&) {
      reshard::quantise_rows(values(memory_.wanted(values_)), wanted_stored(), rows.begin, rows.end,
                             most);
    });
    check();
  }

  void dequantise_rows() {
    std::vector<Rows> cut = random_cut(step_of_cut());
    // May end inside a block.
    for (Rows& rows : cut)
      if (step() != 0 && rows.end > rows.begin) rows.end -= below(rows.end - rows.begin);
    run(MatrixWork::dequantise, cut, [&](const Rows& rows, MatrixSlice&) {
      reshard::dequantise_rows(wanted_stored(), values(memory_.wanted(values_)), rows.begin,
                               rows.end);
    });
    check();
  }

 private:
  Index below(Index n) { return static_cast<Index>(random_() % static_cast<std::uint64_t>(n)); }
  bool is_swizzled() const { return format_.order == ScaleOrder::swizzled; }
  /// Rows of each row of scales or of scale tiles; 0: all.
  Index step() const { return is_swizzled() ? kScaleTileRows : format_.block_rows; }
  /// Slices begin at multiples of this; 0: at the first row.
  Index step_of_cut() const { return is_one_block(format_) ? 1 : step(); }

  /// All rows, in any order; some ranges are empty.
  std::vector<Rows> random_cut(Index step) {
    std::vector<Rows> out;
    for (Index begin = 0; begin < rows_;) {
      const Index most = step == 0 ? 0 : (rows_ - begin + step - 1) / step;
      const Index end = step == 0 ? rows_ : std::min(rows_, begin + step * (1 + below(most)));
      out.push_back({begin, end});
      if (step != 0 && below(4) == 0) out.push_back({begin, begin});
      begin = end;
    }
    if (rows_ == 0) out.push_back({0, 0});
    std::ranges::shuffle(out, random_);
    return out;
  }

  FloatMatrix values(std::byte* at) const { return {at, dtype_, rows_, cols_, values_row_}; }
  FloatMatrix values_of(const Rows& rows) {
    FloatMatrix out = values(memory_.wanted(values_ + rows.begin * values_row_));
    out.rows = rows.end - rows.begin;
    return out;
  }
  QuantMatrix wanted_stored() {
    return {format_,   memory_.wanted(data_),   rows_,       cols_,
            data_row_, memory_.wanted(scales_), scales_row_, memory_.wanted(factor_)};
  }
  MatrixSlice slice(const Rows& rows) {
    MatrixSlice out{values(memory_.held(values_ + rows.begin * values_row_)), wanted_stored(),
                    rows_, rows.begin, reinterpret_cast<float*>(floats_.held(amax_))};
    out.values.rows = out.stored.rows = rows.end - rows.begin;
    out.stored.data = memory_.held(data_ + rows.begin * data_row_);
    const Index first = step() == 0 ? 0 : rows.begin / step();
    out.stored.scales = memory_.held(scales_ + first * scales_row_);
    out.stored.factor = memory_.held(factor_);
    return out;
  }
  void write_amax(Index at, float value) { std::memcpy(floats_.wanted(at), &value, sizeof value); }

  /// Spreads rows over levels and launches most of these in any order. expect(rows, slice) writes
  /// what is wanted of rows that are launched, and may change the slice.
  template <class F>
  void run(MatrixWork work, const std::vector<Rows>& cut, F&& expect) {
    constexpr Index kLevels = 4;
    const Index omitted = work == MatrixWork::amax ? kLevels : below(2 * kLevels);
    MatrixTable table(work);
    std::vector<std::size_t> order;
    std::size_t next = 0;
    for (Index level = 0; level < kLevels; ++level) {
      const std::size_t end =
          level + 1 == kLevels
              ? cut.size()
              : next + static_cast<std::size_t>(below(static_cast<Index>(cut.size() - next) + 1));
      for (; next < end; ++next) {
        MatrixSlice part = slice(cut[next]);
        if (level != omitted) expect(cut[next], part);
        ASSERT_EQ(error_of(table.add(part)), "");
      }
      table.end_level();
      if (level != omitted) order.push_back(static_cast<std::size_t>(level));
    }
    std::ranges::shuffle(order, random_);
    runners_.push_back(MatrixRunner::make(gpu_, table, static_cast<int>(below(4))).value());
    ASSERT_EQ(runners_.back().num_levels(), static_cast<std::size_t>(kLevels));
    for (const std::size_t level : order)
      ASSERT_EQ(error_of(runners_.back().launch(stream_, level)), "");
  }
  void check() {
    ASSERT_EQ(error_of(stream_.synchronize()), "");
    ASSERT_TRUE(memory_.holds_what_is_wanted());
    ASSERT_TRUE(floats_.holds_what_is_wanted());
  }

  std::shared_ptr<const Device> gpu_ = gpu_under_test();
  Stream stream_ = Stream::make(gpu_).value();
  QuantFormat format_;
  DType dtype_;
  Index rows_, cols_;
  std::mt19937_64 random_;
  Index values_row_ = 0, data_row_ = 0, scales_row_ = 0;
  Index values_ = 0, data_ = 0, scales_ = 0, factor_ = 0, parts_ = 0, halves_ = 0, amax_ = 0;
  Mirror memory_, floats_;
  std::vector<MatrixRunner> runners_;
};

void work_on_rows(CutMatrix& matrix, PlainMatrix plain) {
  matrix.write_values(std::move(plain));
  ASSERT_NO_FATAL_FAILURE(matrix.find_amax());
  ASSERT_NO_FATAL_FAILURE(matrix.quantise_rows());
  ASSERT_NO_FATAL_FAILURE(matrix.dequantise_rows());
}

const std::pair<Index, Index> kSizes[] = {{0, 4},    {3, 0},   {1, 2},    {5, 38},    {130, 66},
                                          {33, 300}, {9, 520}, {2, 1030}, {400, 256}, {300, 130}};

TEST(MatrixSlices, GiveTheBytesOfTheHostAndWriteNoOthers) {
  std::uint64_t seed = 0;
  for (const QuantFormat& format : quant_formats())
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const auto& [rows, cols] : kSizes) {
        SCOPED_TRACE(to_string(format) + " of " + std::string(name(dtype)) + " [" +
                     std::to_string(rows) + ", " + std::to_string(cols) + "], seed " +
                     std::to_string(++seed));
        CutMatrix matrix(format, dtype, rows, cols, seed);
        ASSERT_NO_FATAL_FAILURE(
            work_on_rows(matrix, {dtype, rows, cols, random_values(rows * cols, seed)}));
      }
}

TEST(MatrixSlices, OfZerosInfinityAndNan) {
  constexpr Index kRows = 260, kCols = 96;
  const float infinity = bits_float(kFloatInfinity), nan = bits_float(kFloatNan);
  std::uint64_t seed = 0;
  for (const QuantFormat& format : quant_formats())
    for (const float special : {0.0F, -0.0F, infinity, -infinity, nan, -nan, 1e-45F})
      for (const float others : {0.0F, 0.5F}) {
        SCOPED_TRACE(to_string(format) + ": " + std::to_string(special) + " among " +
                     std::to_string(others));
        std::vector<float> values(kRows * kCols, others);
        const std::size_t at = 131 * kCols + 40;
        values[at] = special;
        CutMatrix matrix(format, DType::f32, kRows, kCols, ++seed);
        ASSERT_NO_FATAL_FAILURE(work_on_rows(matrix, {DType::f32, kRows, kCols, values}));
      }
}

TEST(MatrixSlices, LargestMagnitudesOfLongRows) {
  std::uint64_t seed = 0;
  for (const auto& [rows, cols] : {std::pair<Index, Index>(1, 70001), {3, 40000}, {2, 16384}})
    for (const Index largest : {Index{0}, cols / 2, rows * cols - 1}) {
      std::vector<float> values(static_cast<std::size_t>(rows * cols), -1.5F);
      values[static_cast<std::size_t>(largest)] = -7;
      CutMatrix matrix({}, DType::bf16, rows, cols, ++seed);
      matrix.write_values({DType::bf16, rows, cols, values});
      ASSERT_NO_FATAL_FAILURE(matrix.find_amax());
    }
}

}  // namespace
}  // namespace reshard::cuda
