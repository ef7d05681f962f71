// SPDX-License-Identifier: Apache-2.0
// A slow quantiser by the definitions of the formats: tables of values, nearest by search, scales
// by trying exponents. Shares no arithmetic with the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/transform/quantise.h"

namespace reshard {

/// Memory of a quantised matrix, scales in the format's order.
struct QuantBytes {
  std::vector<std::byte> data, scales;
  float factor = 0;
  friend bool operator==(const QuantBytes&, const QuantBytes&);
};

/// A view of `bytes`, rows without gaps.
QuantMatrix view(const QuantFormat& format, Index rows, Index cols, QuantBytes& bytes);

/// Memory for a matrix, filled with `fill`.
QuantBytes quant_bytes(const QuantFormat& format, Index rows, Index cols, std::byte fill);

/// The value of a code of F8_E4M3, F8_E8M0 or F4, by the definition of its fields.
double value_of_code(DType dtype, unsigned code);

/// The code of the nearest value, ties to the even code, saturated. NaN: 0x7f or 0xff, F4 7.
unsigned nearest_code(DType dtype, double value);

/// The whole matrix, `values` row-major. The order of operations in float is that of quantise.h.
QuantBytes reference_quantise(const QuantFormat& format, Index rows, Index cols,
                              const std::vector<float>& values);

/// Row-major floats.
std::vector<float> reference_dequantise(const QuantFormat& format, Index rows, Index cols,
                                        const QuantBytes& bytes);

/// Where scale (row, col) lies in `QuantBytes::scales`, by the definition of the tiles.
std::size_t reference_scale_place(const QuantFormat& format, Index cols, Index row, Index col);

}  // namespace reshard
