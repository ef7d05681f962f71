// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/transform/copy.h"

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
/// Errors: a format that no kernel knows (dtype pairs and their rules, negative blocks, a factor
/// beside other scales than f8_e4m3); 4-bit data whose rows or blocks are not whole bytes; for
/// swizzled scales block_rows other than 1 or scales that are not bytes; sizes that no memory has.
Result<> check_quant_format(const QuantFormat& format, Index rows, Index cols);

/// The largest magnitude of a matrix as float; 0 of an empty one. NaN where any element is.
float amax(const FloatMatrix& matrix);

/// Writes data and scales of the blocks in rows [begin, end) of the matrix; begin is a multiple of
/// block_rows, and so is end unless it is the last row. Blocks of whole columns (block_rows 0) need
/// all rows at once; a matrix that is one block takes any rows. Threads may work on disjoint row
/// ranges. A range costs what its rows cost: nothing is prepared for the matrix.
///
/// Every element is scaled by its block's scale in float, rounded to nearest even and saturated:
/// divided by an exact f32 scale, multiplied by the inverse of a power of two, and by (1 / factor)
/// / scale where scales are f8_e4m3. A block with a NaN has a NaN scale and only NaN (E2M1: 6).
/// docs/quantisation.md has the rest. Deterministic: the same bytes at every SimdLevel. The range
/// with row 0 writes the factor and the scale of a matrix that is one block; padding of swizzled
/// tiles is written as zeros, what lies below the last row by the range that has it.
///
/// A format with a tensor factor, and one whose block is the whole matrix, take the amax of the
/// matrix from `matrix_amax`; others do not look at it. Allocates nothing.
///
/// `hint` says where the data go; all stores are ordered when this returns, whatever it says.
/// @pre check_quant_format() holds; src and dst have equal rows and cols and do not overlap; src is
/// bf16, f16 or f32
void quantise_rows(const FloatMatrix& src, const QuantMatrix& dst, Index begin, Index end,
                   float matrix_amax, CopyHint hint = CopyHint::streaming);

/// The whole matrix, by one thread. Allocates nothing.
void quantise(const FloatMatrix& src, const QuantMatrix& dst, CopyHint hint = CopyHint::streaming);

/// Writes data * (scale * factor), computed in float and rounded to dst's dtype, for rows [begin,
/// end), any rows. Where the scale is NaN, so are all elements of its block. Allocates nothing.
/// @pre as above
void dequantise_rows(const QuantMatrix& src, const FloatMatrix& dst, Index begin, Index end,
                     CopyHint hint = CopyHint::streaming);

}  // namespace reshard
