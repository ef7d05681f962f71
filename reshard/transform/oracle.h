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

/// What the elements of an oracle tensor look like.
enum class OracleKind {
  /// Any bits, NaN and infinity among them: the sharpest test of who moved what where.
  bits,
  /// Floats that are finite and small (from 2^-11 to 2^-7 in size for 16 bits and more, below 2 for
  /// 8 bits), so that a model can be run on them. Other dtypes as with `bits`, booleans 0 or 1.
  weights,
};

/// The pseudo-random content of canonical tensors: a pure function of kind, seed, tensor name,
/// dtype and the element's place in the whole tensor, the same on every machine and whatever part
/// is asked for.
///
/// Definition: byte i of the row-major packed tensor is byte i mod 8, little-endian, of
/// mix64(key + i / 8), key = mix64(hash64(name) ^ mix64(seed)); for `weights`, with some bits of
/// every element then fixed.
struct Oracle {
  OracleKind kind = OracleKind::bits;
  std::uint64_t seed = 0;
};

/// Writes the elements in `box` of the tensor to where they live, at `where` in the local tensor
/// that begins at `data`. Errors: unsupported when 4- or 6-bit elements do not lie in whole bytes,
/// invalid_argument for an impossible shape.
/// @pre `box` lies in the shape; `where` has a stride for each dimension and stays inside the local
/// tensor
Result<> oracle_fill(const Oracle& oracle, std::string_view name, const Dims& shape, DType dtype,
                     const Box& box, const Strided& where, std::byte* data);

/// The first element, in row-major order of the whole tensor, that is not as the oracle says.
struct OracleMismatch {
  Dims index;              ///< of the element in the canonical tensor
  std::uint64_t want = 0;  ///< its bits; for elements below 8 bits, the byte that holds it
  std::uint64_t got = 0;
  friend bool operator==(const OracleMismatch&, const OracleMismatch&) = default;
};

/// "element [3, 14]: want 0x3f80, got 0x0000"
std::string to_string(const OracleMismatch& mismatch);

/// Compares the elements in `box` with what oracle_fill writes; bit by bit, so NaN equals NaN.
/// @return none when all are right. Errors and preconditions: as for oracle_fill.
Result<std::optional<OracleMismatch>> oracle_check(const Oracle& oracle, std::string_view name,
                                                   const Dims& shape, DType dtype, const Box& box,
                                                   const Strided& where, const std::byte* data);

}  // namespace reshard
