// SPDX-License-Identifier: Apache-2.0
// A fingerprint of a tensor that does not depend on how the tensor is cut.
//
// Definition. A canonical tensor is seen as a matrix of bytes: its rows are the leading dimensions
// in row-major order, its columns the bytes of the last dimension, packed and little-endian as the
// tensor is stored. A row longer than 16384 bytes is folded into parts of 16384: byte c of row r is
// byte p = c mod 16384 of part q = r * parts + c / 16384. With lanes l in {0, 1}, all modulo 2^64:
//
//   F_l = sum over bytes (q, p)  A_l[q] * B_l[p / 4] * 2^(8 (p mod 4)) * (byte + 1)
//
//   A_l[q]  odd 64-bit words: mix64(key_l + q) | 1, with key_l drawn from name, shape, dtype and l
//   B_l[w]  odd 32-bit words, all different within a lane, from a table that is the same for all
//   tensors
//
// So a 32-bit word of the row counts as one number, whatever the dtype, and costs one
// multiplication a lane.
//
// What it says. The sum over any set of disjoint boxes, in any order, is the fingerprint of their
// union; of boxes that make up the tensor, the tensor's. Everything below holds for both sides'
// sums, so that a box counted twice or left out shows like any other difference, even where its
// bytes are zero (hence the + 1).
// - A change inside one aligned 4-byte word (so any one element of up to 32 bits that is at an
// aligned
//   place), and two different words of one part exchanged: always found, as the difference is an
//   odd number times something smaller than 2^64 and not 0.
// - Anything else (64-bit elements, elements, rows, columns, experts, shards or whole tensors
// exchanged,
//   moved, lost, doubled) goes unnoticed with a probability, over the draw of the keys, of about
//   2^-62 at worst, where the values differ by multiples of high powers of two (a sign bit), and
//   2^-126 else.
// It is no defence against somebody who chooses the bytes to deceive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/layout/strided.h"
#include "reshard/transform/box_rows.h"

namespace reshard {

/// Two lanes of a sum modulo 2^64. The default is that of no elements.
struct Fingerprint {
  std::array<std::uint64_t, 2> lane{};

  /// The fingerprint of both operands' elements together.
  Fingerprint& operator+=(const Fingerprint& other) {
    for (std::size_t l = 0; l < 2; ++l) lane[l] += other.lane[l];
    return *this;
  }
  friend Fingerprint operator+(Fingerprint a, const Fingerprint& b) { return a += b; }
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// 32 lower-case hexadecimal digits, lane 0 first.
std::string to_string(const Fingerprint& fingerprint);
/// The inverse of to_string, or none for any other text.
std::optional<Fingerprint> fingerprint_from_string(std::string_view text);

/// What the weights of one canonical tensor are drawn from. A value; safe to share between threads.
class FingerprintKey {
 public:
  /// Errors: unsupported when the last dimension is not whole bytes (4- and 6-bit elements),
  /// invalid_argument for a negative dimension or a tensor too large for 64-bit arithmetic.
  static Result<FingerprintKey> make(std::string_view name, const Dims& shape, DType dtype);

  const Dims& shape() const { return matrix_.shape; }
  const ByteMatrix& matrix() const { return matrix_; }
  /// key_l of the definition.
  std::uint64_t lane_key(std::size_t lane) const { return keys_[lane]; }
  /// Parts of a row.
  Index parts() const { return parts_; }

 private:
  ByteMatrix matrix_;
  std::array<std::uint64_t, 2> keys_{};
  Index parts_ = 1;
};

/// The fingerprint of the elements in `box` of the key's tensor, which live at `where` in the local
/// tensor that begins at `data`. Reads each element once; many threads may work on one tensor.
///
/// Errors: unsupported when 4- or 6-bit elements do not lie in whole bytes.
/// @pre `box` lies in the tensor; `where` has a stride for each dimension and stays inside the
/// local tensor
Result<Fingerprint> fingerprint(const FingerprintKey& key, const Box& box, const Strided& where,
                                const std::byte* data);

/// The fingerprint of a whole tensor that is stored row-major.
Result<Fingerprint> fingerprint(const FingerprintKey& key, const std::byte* data);

}  // namespace reshard
