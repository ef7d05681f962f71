// SPDX-License-Identifier: Apache-2.0
// A slow reference quantiser that follows the definitions of the formats: tables of values, nearest
// value by search, scales by trial of exponents. Shares no arithmetic with the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/transform/quantise.h"

namespace reshard {

/// A quantised matrix in owned memory, with scales in the format's order.
struct QuantBytes {
  std::vector<std::byte> data, scales;
  float factor = 0;
  friend bool operator==(const QuantBytes&, const QuantBytes&);
};

/// A view of `bytes`, rows without gaps.
QuantMatrix view(const QuantFormat& format, Index rows, Index cols, QuantBytes& bytes);

/// Memory for a matrix, filled with `fill`.
QuantBytes quant_bytes(const QuantFormat& format, Index rows, Index cols, std::byte fill);

/// The value of a code of F8_E4M3, F8_E8M0, F4, or an integer of QuantFormat, from its bit fields.
double value_of_code(DType dtype, unsigned code);

/// The code of the nearest value, ties to the even code, saturated. NaN: 0x7f or 0xff, F4 7,
/// integers that of 0.
unsigned nearest_code(DType dtype, double value);

/// Quantises a matrix; `values` are row-major, of `dtype`. Float operations are in the order of
/// quantise.h.
QuantBytes reference_quantise(const QuantFormat& format, DType dtype, Index rows, Index cols,
                              const std::vector<float>& values);

/// Dequantises a matrix. Row-major.
std::vector<float> reference_dequantise(const QuantFormat& format, Index rows, Index cols,
                                        const QuantBytes& bytes);

/// The index of scale (row, col) in `QuantBytes::scales`, from the definition of the tiles.
std::size_t reference_scale_place(const QuantFormat& format, Index cols, Index row, Index col);

}  // namespace reshard
