// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/layout/strided.h"

namespace reshard {

/// A canonical tensor as a matrix of bytes: one row per index of the leading dimensions, in
/// row-major order, and one column per byte of the packed last dimension. A scalar is one row.
struct ByteMatrix {
  Dims shape;  ///< of the tensor, in elements.
  int bits = 8;
  Index rows = 1, row_bytes = 1;

  /// Errors: unsupported if rows are not whole bytes; invalid_argument if a dimension is negative
  /// or the tensor has 2^62 bytes or more.
  static Result<ByteMatrix> make(const Dims& shape, DType dtype);
};

/// Errors: `unsupported` if elements below 8 bits of `box`, at `where` in a local tensor, do not
/// fill whole bytes, or a run of the last dimension does not.
/// @pre as for for_each_row_block
Result<> check_whole_bytes(const ByteMatrix& matrix, const Box& box, const Strided& where);

/// Rows [first, first + rows) and columns [begin, begin + bytes) of a ByteMatrix. Row first + i is
/// contiguous at data + i * stride.
struct RowBlock {
  Index first = 0, rows = 0;
  Index begin = 0, bytes = 0;
  std::byte* data = nullptr;
  Index stride = 0;
};

enum class Access { read, write };

/// Calls f for blocks that together cover `box`, each byte once, ordered by their first rows.
///
/// The box lies at `where` in the local tensor that begins at `data`. If its last dimension is
/// contiguous there, blocks are views of that memory. Otherwise they are copies of bounded size,
/// filled before f (Access::read) or stored after f (Access::write). f returns false to stop early.
/// Errors: unsupported if elements below 8 bits do not fill whole bytes.
/// @pre box lies in the tensor; where has one stride per dimension
Result<> for_each_row_block(const ByteMatrix& matrix, const Box& box, const Strided& where,
                            std::byte* data, Access access,
                            const std::function<bool(const RowBlock&)>& f);

}  // namespace reshard
