// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/transform/copy.h"

namespace reshard {

/// A matrix of floats in borrowed memory. Rows are `row_bytes` apart, elements of a row contiguous.
/// No alignment is required.
struct FloatMatrix {
  std::byte* data = nullptr;
  DType dtype = DType::bf16;  ///< bf16, f16 or f32.
  Index rows = 0, cols = 0;   ///< elements.
  Index row_bytes = 0;
};

/// A quantised matrix in borrowed memory: data, scales and, for formats with a tensor factor, the
/// factor.
struct QuantMatrix {
  QuantFormat format;
  std::byte* data = nullptr;
  Index rows = 0, cols = 0;  ///< in elements of the data.
  Index row_bytes = 0;       ///< between rows of the data.
  std::byte* scales = nullptr;
  Index scale_row_bytes = 0;    ///< between rows of the scales; unused if swizzled.
  std::byte* factor = nullptr;  ///< one f32 if format.tensor_factor, else unused.
};

/// The number of blocks down and across a matrix: ceil(rows / block_rows), ceil(cols / block_cols).
/// The grid begins at the matrix' first element; blocks at the end may be partial.
Index scale_rows(const QuantFormat& format, Index rows);
Index scale_cols(const QuantFormat& format, Index cols);
/// Bytes of all scales of a matrix, including the padding of swizzled tiles.
Index scale_bytes(const QuantFormat& format, Index rows, Index cols);
/// Checks that the kernels support a format and a matrix size. Errors: a combination of dtypes,
/// rule and factor without a kernel; a negative block size; 4-bit data whose rows or blocks do not
/// fill whole bytes; swizzled scales with block_rows other than 1 or wider than a byte; a size that
/// exceeds any memory.
Result<> check_quant_format(const QuantFormat& format, Index rows, Index cols);

/// The largest magnitude in a matrix; 0 if it is empty, NaN if any element is NaN.
float amax(const FloatMatrix& matrix);

/// The amaxes of the blocks of a matrix in borrowed memory: one f32 a block, a row of them for each
/// row of blocks. No alignment is required. A scale depends on its block's amax only, so a block
/// that several ranks hold parts of is quantised part by part, given the largest of their amaxes.
struct BlockAmaxes {
  std::byte* first = nullptr;  ///< null: none.
  Index row_bytes = 0;         ///< between rows; 0: all rows are the same one.
};

/// Writes the amax of each block of rows [begin, end) of a matrix, as amax() does, into the rows of
/// `out` from the row of blocks of `begin` on. `format`: only the size of its blocks is used. Rows:
/// as for quantise_rows(); the rows of a single block have their own amax. Allocates nothing.
/// @pre src is bf16, f16 or f32
void block_amaxes(const FloatMatrix& src, const QuantFormat& format, Index begin, Index end,
                  const BlockAmaxes& out);

/// Quantises rows [begin, end) of a matrix: writes data and scales. begin and end are multiples of
/// block_rows, except that end may be the last row. Blocks of whole columns (block_rows 0) need all
/// rows in one call; a matrix that is a single block takes any rows. Threads may work on disjoint
/// row ranges. The cost is proportional to the rows: nothing is prepared for the whole matrix.
///
/// Every element is scaled in float, rounded to nearest even and saturated. It is divided by an
/// exact f32 scale, multiplied by the inverse of a power of two or, with f8_e4m3 scales, by (1 /
/// factor) / scale. A block that contains NaN gets a NaN scale and only NaN elements (E2M1: 6).
/// docs/quantisation.md has the details. The result is the same at every SimdLevel.
///
/// The range that contains row 0 also writes the factor, and the scale of a single-block matrix.
/// The padding of swizzled tiles is written as zeros; the range that contains the last row writes
/// the padding below it.
///
/// `matrix_amax` is the amax of the whole matrix. Only formats with a tensor factor, and those
/// whose block is the whole matrix, use it. `hint` applies to the data; all stores are ordered on
/// return in any case. Allocates nothing.
/// @pre check_quant_format() holds; src and dst have equal rows and cols and do not overlap; src is
/// bf16, f16 or f32
void quantise_rows(const FloatMatrix& src, const QuantMatrix& dst, Index begin, Index end,
                   float matrix_amax, CopyHint hint = CopyHint::streaming);

/// The same with the amaxes of all blocks given, of which this matrix has a part; elements above
/// them saturate. A single block takes `matrix_amax`, and none of these.
void quantise_rows(const FloatMatrix& src, const QuantMatrix& dst, Index begin, Index end,
                   float matrix_amax, const BlockAmaxes& blocks,
                   CopyHint hint = CopyHint::streaming);

/// Quantises a whole matrix in this thread. Allocates nothing.
void quantise(const FloatMatrix& src, const QuantMatrix& dst, CopyHint hint = CopyHint::streaming);

/// Dequantises rows [begin, end), any rows: writes data * (scale * factor), computed in float and
/// rounded to dst's dtype. A NaN scale makes all elements of its block NaN. Allocates nothing.
/// @pre as for quantise_rows
void dequantise_rows(const QuantMatrix& src, const FloatMatrix& dst, Index begin, Index end,
                     CopyHint hint = CopyHint::streaming);

}  // namespace reshard
