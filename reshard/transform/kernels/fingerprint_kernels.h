// SPDX-License-Identifier: Apache-2.0
// The inner loops behind fingerprint.h: one function for each instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reshard/transform/fingerprint_arithmetic.h"
#include "reshard/transform/simd.h"

namespace reshard::kernels {

/// B_l of the definition.
struct ColumnTable {
  /// Words beyond the first kPartWords are loaded but multiplied by 0.
  alignas(64) std::array<std::array<std::uint32_t, kPartWords + 16>, 2> weight;
  /// Prefix sums of the weights.
  std::array<std::array<std::uint64_t, kPartWords + 1>, 2> before;
};

/// The table, computed once. Thread-safe.
const ColumnTable& column_table();

/// Bytes [begin, begin + bytes) of `rows` parts. Those of part first + i * step are at
/// data + i * stride.
struct PartBlock {
  const ColumnTable* table;  ///< column_table()
  const std::byte* data;
  std::ptrdiff_t stride;
  std::size_t rows;
  std::size_t begin, bytes;  ///< bytes > 0, begin + bytes <= kPartBytes
  std::uint64_t first, step;
  std::array<std::uint64_t, 2> keys;
  /// The contribution of the "+ 1" of all bytes to each part's sum over columns.
  std::array<std::uint64_t, 2> ones;
  bool in_order = reads_best_in_order();
};

/// Adds the block's contribution to F_l to sum[l].
using FingerprintKernel = void (*)(const PartBlock&, std::array<std::uint64_t, 2>& sum);

void fingerprint_portable(const PartBlock& block, std::array<std::uint64_t, 2>& sum);
/// @pre the processor has the instructions
void fingerprint_avx2(const PartBlock& block, std::array<std::uint64_t, 2>& sum);
void fingerprint_avx512(const PartBlock& block, std::array<std::uint64_t, 2>& sum);
void fingerprint_neon(const PartBlock& block, std::array<std::uint64_t, 2>& sum);

}  // namespace reshard::kernels
