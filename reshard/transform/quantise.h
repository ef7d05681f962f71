// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A matrix of plain numbers in memory that is borrowed. Rows lie `row_bytes` apart; elements of a
/// row side by side. No alignment is needed.
struct FloatMatrix {
  std::byte* data = nullptr;
  DType dtype = DType::bf16;  ///< bf16, f16 or f32.
  Index rows = 0, cols = 0;   ///< elements.
  Index row_bytes = 0;
};

/// A quantised matrix in memory that is borrowed: data, scales, and the factor of a format that has
/// one.
struct QuantMatrix {
  QuantFormat format;
  std::byte* data = nullptr;
  Index rows = 0, cols = 0;  ///< elements of the data.
  Index row_bytes = 0;       ///< from row to row of the data.
  std::byte* scales = nullptr;
  Index scale_row_bytes = 0;    ///< from row to row of the scales; unused where they are swizzled.
  std::byte* factor = nullptr;  ///< one f32, where format.tensor_factor.
};

/// Blocks down and across a matrix: ceil(rows / block_rows), ceil(cols / block_cols). A block that
/// the matrix' end cuts is a block. The grid begins at the matrix' first element.
Index scale_rows(const QuantFormat& format, Index rows);
Index scale_cols(const QuantFormat& format, Index cols);
/// Bytes of all scales of a matrix, tiles' padding included where they are swizzled.
Index scale_bytes(const QuantFormat& format, Index rows, Index cols);
/// Errors: a format that no kernel knows (dtype pairs, negative blocks); 4-bit data whose rows are
/// not whole bytes; for swizzled scales block_rows other than 1.
Result<> check_quant_format(const QuantFormat& format, Index rows, Index cols);

/// The largest magnitude of a matrix as float; 0 of an empty one. NaN where any element is.
float amax(const FloatMatrix& matrix);

/// Writes data and scales of the blocks in rows [begin, end) of the matrix; begin is a multiple of
/// block_rows, and so is end unless it is the last row. Threads may work on disjoint row ranges.
/// Every element is divided by its block's scale in float, rounded to nearest even and saturated;
/// NaN stays NaN where the dtype has one, else its block's scale becomes NaN. Deterministic: the
/// same bytes at every SimdLevel. Padding of swizzled tiles in these rows is written as zeros.
///
/// Formats with one scale for a whole dimension or a tensor factor take amax of it from
/// `matrix_amax`; others do not look at it. Allocates nothing.
/// @pre check_quant_format() holds; src and dst have equal rows and cols and do not overlap
void quantise_rows(const FloatMatrix& src, const QuantMatrix& dst, Index begin, Index end,
                   float matrix_amax);

/// The whole matrix, by one thread. Allocates nothing.
void quantise(const FloatMatrix& src, const QuantMatrix& dst);

/// Writes data * scale (* factor), computed in float and rounded to dst's dtype, for rows [begin,
/// end), any rows. Allocates nothing. @pre as above
void dequantise_rows(const QuantMatrix& src, const FloatMatrix& dst, Index begin, Index end);

}  // namespace reshard
