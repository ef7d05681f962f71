// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/layout/strided.h"

namespace reshard {

/// The kind of values in an oracle tensor.
enum class OracleKind {
  /// Arbitrary bits, including NaN and infinity: the strictest test of what moved where.
  bits,
  /// Small finite floats (magnitude 2^-11 to 2^-7 for 16 bits and more, below 2 for 8 bits), so
  /// that a model can be run on them. Booleans are 0 or 1, other dtypes as with `bits`.
  weights,
};

/// Pseudo-random content of canonical tensors: a pure function of kind, seed, tensor name, dtype
/// and the element's position in the whole tensor. It is identical on every machine and for every
/// part of the tensor.
///
/// Definition: byte i of the row-major packed tensor is byte i mod 8, little-endian, of
/// mix64(key + i / 8), key = mix64(hash64(name) ^ mix64(seed)). `weights` then fixes some bits of
/// every element.
struct Oracle {
  OracleKind kind = OracleKind::bits;
  std::uint64_t seed = 0;
};

/// Writes the elements in `box` of the tensor to `where` in the local tensor that begins at `data`.
/// Errors: unsupported if 4- or 6-bit elements do not fill whole bytes; invalid_argument for an
/// impossible shape.
/// @pre `box` lies in the shape; `where` has one stride per dimension and stays inside the local
/// tensor
Result<> oracle_fill(const Oracle& oracle, std::string_view name, const Dims& shape, DType dtype,
                     const Box& box, const Strided& where, std::byte* data);

/// The first element, in row-major order of the whole tensor, that differs from the oracle.
struct OracleMismatch {
  Dims index;              ///< of the element in the canonical tensor.
  std::uint64_t want = 0;  ///< its bits; for elements below 8 bits, the byte that contains it.
  std::uint64_t got = 0;
  friend bool operator==(const OracleMismatch&, const OracleMismatch&) = default;
};

/// "element [3, 14]: want 0x3f80, got 0x0000"
std::string to_string(const OracleMismatch& mismatch);

/// Compares the elements in `box` with those that oracle_fill writes, bit by bit, so NaN equals
/// NaN.
/// @return none if all are equal. Errors and preconditions: as for oracle_fill.
Result<std::optional<OracleMismatch>> oracle_check(const Oracle& oracle, std::string_view name,
                                                   const Dims& shape, DType dtype, const Box& box,
                                                   const Strided& where, const std::byte* data);

}  // namespace reshard
