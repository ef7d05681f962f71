// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// Name, dtype and shape of a tensor to store.
struct TensorSpec {
  std::string name;
  DType dtype = DType::bf16;
  Dims shape;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// A stored tensor, row-major, at byte `offset` from the beginning of its file.
///
/// Invariant: `bytes` follows from dtype and shape, the range lies inside the file, and the product
/// of the shape (zeros counted as ones) times the dtype's bits fits in int64.
struct StoredTensor : TensorSpec {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

/// The bytes of a contiguous tensor. Errors: a negative entry; a size in bits (zeros counted as
/// ones) that does not fit in int64; 4- or 6-bit elements that do not fill whole bytes.
Result<std::int64_t> stored_bytes(DType dtype, const Dims& shape);

}  // namespace reshard
