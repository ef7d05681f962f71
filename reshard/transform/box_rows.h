// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/layout/strided.h"

namespace reshard {

/// A canonical tensor as a matrix of bytes: a row for each index of the leading dimensions, in
/// row-major order; a column for each byte of the last dimension as it is packed. A scalar is one
/// row.
struct ByteMatrix {
  Dims shape;  ///< of the tensor, in elements
  int bits = 8;
  Index rows = 1, row_bytes = 1;

  /// Errors: unsupported when rows are not whole bytes, invalid_argument when a dimension is
  /// negative or the tensor has 2^62 bytes or more.
  static Result<ByteMatrix> make(const Dims& shape, DType dtype);
};

/// Rows `first`, `first` + 1, ... of a ByteMatrix, columns [begin, begin + bytes): the row i from
/// `first` on lies at data + i * stride, contiguous.
struct RowBlock {
  Index first = 0, rows = 0;
  Index begin = 0, bytes = 0;
  std::byte* data = nullptr;
  Index stride = 0;
};

enum class Access { read, write };

/// Calls f for blocks that make up `box`, each byte once, in row-major order of blocks' first rows.
///
/// The box lives at `where` in the tensor whose first byte is `data`. Where its last dimension is
/// contiguous there, blocks are views of it. Elsewhere, blocks are copies of bounded size: with
/// Access::read filled before f, with Access::write stored after f. f returns false to stop early.
/// Errors: unsupported when elements below 8 bits do not lie in whole bytes.
/// @pre box lies in the tensor; where has a stride for each dimension
Result<> for_each_row_block(const ByteMatrix& matrix, const Box& box, const Strided& where,
                            std::byte* data, Access access,
                            const std::function<bool(const RowBlock&)>& f);

}  // namespace reshard
