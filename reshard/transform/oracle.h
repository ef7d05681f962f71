// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/dtype.h"
#include "reshard/layout/strided.h"

namespace reshard {

/// What values an oracle gives.
enum class OracleKind {
  bits,     ///< all bit patterns, NaN included: for proofs.
  weights,  ///< floats of either sign with magnitudes from 2^-9 to 2^-5, for checkpoints that a
            ///< model loads; other dtypes as bits.
};

/// The bits of every element of one canonical tensor, as a function of its name, its row-major
/// position and a seed: with w = 64 / b elements of b bits to a word, element i has bits [b * (i
/// mod w), ...) of mix64(hash64(name, seed) + floor(i / w)), for `weights` with the exponent put
/// into range. 4- and 6-bit dtypes are seen as bytes: boxes must begin and end at whole bytes along
/// the last dimension. A value; safe to use from any thread.
class Oracle {
 public:
  Oracle(std::string_view name, const Dims& shape, DType dtype, std::uint64_t seed,
         OracleKind kind);

  /// Writes the elements of a box to where it lives in the local tensor that begins at `data`.
  /// @pre the box is inside the shape; `where` is in elements of the local tensor
  void fill(const Box& box, const Strided& where, std::byte* data) const;

  /// The first element of the box, in row-major order, that is not what fill writes: "[3, 5] is
  /// 0x1f, not 0x20"; or none.
  std::optional<std::string> check(const Box& box, const Strided& where,
                                   const std::byte* data) const;

 private:
  template <class F>
  void for_each_run(const Box& box, const Strided& where, F&& f) const;
  void make(Index first, Index count, std::byte* out) const;

  Dims strides_;  ///< of the whole tensor, row-major, in elements (bytes for sub-byte dtypes).
  std::uint64_t key_ = 0;
  int bytes_ = 1;  ///< of one element.
  int pack_ = 8;   ///< bits of a stored element: 4 and 6 for sub-byte dtypes.
  std::uint64_t keep_ = ~std::uint64_t{0}, vary_ = 0, base_ = 0;
};

}  // namespace reshard
