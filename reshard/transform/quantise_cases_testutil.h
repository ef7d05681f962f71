// SPDX-License-Identifier: Apache-2.0
// Test cases of quantisation: formats, instruction sets, plain matrices and their values.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/transform/quantise_testutil.h"
#include "reshard/transform/simd.h"

namespace reshard {

/// All named formats, and some with block sizes that are not multiples of a vector.
const std::vector<QuantFormat>& quant_formats();

/// A plain matrix in unaligned memory with gaps between rows.
class PlainMatrix {
 public:
  /// `values` row-major, rounded to the dtype.
  PlainMatrix(DType dtype, Index rows, Index cols, const std::vector<float>& values);

  FloatMatrix view() { return {bytes_.data() + 3, dtype_, rows_, cols_, row_bytes_}; }

  /// The elements as floats, row-major.
  std::vector<float> values() const;

 private:
  Index width() const { return dtype_ == DType::f32 ? 4 : 2; }
  void put(std::uint32_t bits, int count);
  float value(Index at) const;

  DType dtype_;
  Index rows_, cols_, row_bytes_ = 0;
  std::vector<std::byte> bytes_;
};

/// Values of many kinds: like weights, of all magnitudes, with few distinct values, and special
/// ones.
std::vector<float> random_values(Index count, std::uint64_t seed);

/// quantise() of the whole matrix, into non-zero memory.
QuantBytes quantised(const QuantFormat& format, PlainMatrix& plain);

}  // namespace reshard
