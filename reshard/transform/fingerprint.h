// SPDX-License-Identifier: Apache-2.0
// A fingerprint of a tensor that does not depend on how the tensor is cut.
//
// Definition. View a canonical tensor as a matrix of bytes: its rows are the leading dimensions in
// row-major order, its columns the bytes of the last dimension, packed and little-endian. Fold rows
// longer than 16384 bytes into parts of 16384: byte c of row r is byte p = c mod 16384 of part
// q = r * parts + c / 16384. For the lanes l in {0, 1}, modulo 2^64:
//
//   F_l = sum over bytes (q, p)  A_l[q] * B_l[p / 4] * 2^(8 (p mod 4)) * (byte + 1)
//
//   A_l[q]  odd 64-bit words: mix64(key_l + q) | 1; key_l is derived from name, shape, dtype and l
//   B_l[w]  odd 32-bit words, distinct within a lane, from a table shared by all tensors
//
// So a 32-bit word of a row counts as one number, whatever the dtype, and costs one multiplication
// per lane.
//
// Properties. The sum over any disjoint boxes, in any order, is the fingerprint of their union; the
// sum over boxes that cover the tensor is the tensor's fingerprint. A box that is counted twice or
// left out changes the sum like any other difference, even if its bytes are zero (hence the + 1).
// - Always detected: a change inside one aligned 4-byte word (so of any aligned element of up to 32
//   bits), and two different words of one part exchanged. The difference is an odd number times a
//   non-zero number below 2^64.
// - All else (64-bit elements; elements, rows, columns, experts, shards or whole tensors exchanged,
//   moved, lost or duplicated) is missed with a probability, over the choice of keys, of at most
//   about 2^-62, if values differ by multiples of high powers of two (a sign bit), and 2^-126
//   otherwise.
// It does not protect against an adversary who chooses the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// Two lanes of a sum modulo 2^64. The default is the fingerprint of no elements.
struct Fingerprint {
  std::array<std::uint64_t, 2> lane{};

  /// The fingerprint of the union of both operands' elements.
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

}  // namespace reshard
