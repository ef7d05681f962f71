// SPDX-License-Identifier: Apache-2.0
// Protects: several threads convert a matrix to the same bytes as one thread.
#include "reshard/exec/matrix_threads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "reshard/transform/quantise_cases_testutil.h"

namespace reshard {
namespace {

/// Large enough for three threads, with rows that blocks of 128 do not divide.
constexpr Index kRows = 1549, kCols = 1100;

bool same(const FloatMatrix& a, const FloatMatrix& b) {
  for (Index r = 0; r < a.rows; ++r)
    if (std::memcmp(a.data + r * a.row_bytes, b.data + r * b.row_bytes,
                    static_cast<std::size_t>(a.cols * bits(a.dtype) / 8)) != 0)
      return false;
  return true;
}

TEST(MatrixThreads, convert_as_one_thread_does) {
  PlainMatrix plain(DType::bf16, kRows, kCols, random_values(kRows * kCols, 1));
  for (const QuantFormat& format : quant_formats()) {
    QuantBytes want = quantised(format, plain);
    PlainMatrix back(DType::bf16, kRows, kCols, std::vector<float>(kRows * kCols));
    dequantise_rows(view(format, kRows, kCols, want), back.view(), 0, kRows);
    for (const int threads : {0, 3}) {
      QuantBytes got = quant_bytes(format, kRows, kCols, std::byte{0x5a});
      quantise_in_threads(plain.view(), view(format, kRows, kCols, got), threads);
      EXPECT_TRUE(got == want) << to_string(format) << " by " << threads;
      PlainMatrix values(DType::bf16, kRows, kCols, std::vector<float>(kRows * kCols, 1));
      dequantise_in_threads(view(format, kRows, kCols, got), values.view(), threads);
      EXPECT_TRUE(same(values.view(), back.view())) << to_string(format) << " by " << threads;
    }
  }
}

TEST(MatrixThreads, find_the_largest_magnitude_and_nan_wherever_they_are) {
  std::vector<float> values(kRows * kCols, 0.5F);
  for (const Index at : {Index{0}, kRows * kCols / 2, kRows * kCols - 1}) {
    auto changed = values;
    changed[static_cast<std::size_t>(at)] = -7;
    EXPECT_EQ(amax_in_threads(PlainMatrix(DType::f32, kRows, kCols, changed).view(), 4), 7);
    changed[static_cast<std::size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(
        std::isnan(amax_in_threads(PlainMatrix(DType::f32, kRows, kCols, changed).view(), 4)));
  }
  EXPECT_EQ(amax_in_threads(FloatMatrix{}, 4), 0);
}

}  // namespace
}  // namespace reshard
