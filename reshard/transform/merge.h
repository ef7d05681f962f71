// SPDX-License-Identifier: Apache-2.0
// Weights with the low-rank changes of adapters added: LoRA (Hu et al. 2021, equation 3),
// W + scale * B A.
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/index/interval.h"
#include "reshard/transform/decode.h"

namespace reshard {

/// Values in row-major order. Borrows them.
struct StoredValues {
  const std::byte* data = nullptr;  ///< no alignment is required.
  DType dtype = DType::bf16;        ///< f32, bf16 or f16.
};

/// The change of a matrix [out, in] that two factors describe: scale * b a.
struct LowRankChange {
  StoredValues a;           ///< [rank, in].
  StoredValues b;           ///< [out, rank].
  Index rank = 0;           ///< at least 1.
  float scale = 1;          ///< finite.
  bool transposed = false;  ///< the weight is stored as [in, out].
};

/// A weight with changes. `base` has rows * cols values; a weight of other than two dimensions is
/// one row, and has no changes. Borrows its parts.
struct MergedTensor {
  Index rows = 0, cols = 0;
  std::variant<StoredValues, CodedTensor> base;
  std::vector<LowRankChange> changes = {};
};

/// Writes elements [first, first + count) of a weight, in row-major order. The base is rounded to
/// `to`, as a module holds it; changes are computed and added in F32, in their order; the sum is
/// rounded once. Memory: 4 * rank * cols bytes for each change. Thread-safe for disjoint
/// outputs.
///
/// @pre `to` is f32, bf16 or f16; the range is within the tensor; check_codes() succeeds for a
/// coded base; parts have the sizes that follow from their declarations
void merge(const MergedTensor& tensor, Index first, Index count, DType to, std::byte* out);

}  // namespace reshard
