// SPDX-License-Identifier: Apache-2.0
// The code of a block of elements as its difference from an earlier version of the same block.
//
// Definition. Elements are unsigned little-endian integers of 1, 2, 4 or 8 bytes. A code is empty
// (the block is the same), or begins with a byte that names its form:
//
//   1  sparse: two bytes, the parameters g and v; the number of changed elements as LEB128; then
//      for each of them, in their order, the Rice code (g) of the number of elements that did not
//      change since the last one that did, and the Rice code (v) of z(next - base) - 1, where z
//      maps the difference 1, -1, 2, -2, ... (modulo 2^bits, signed) to 2, 1, 4, 3, ... Bits fill
//      bytes from the lowest; the rest of the last byte is zero.
//   2  whole: the bytes themselves.
//   3  nibbles, for elements of one byte: as sparse, with each byte as two elements of 4 bits, the
//      lower one first. Formats of 4 bits are stored so.
//
// The Rice code (k) of n is q = n >> k as q ones and a zero, then the k low bits of n; if q would
// reach 24, it is 24 ones and n in full, in 21 bits for a number of elements and else in an
// element's bits.
//
// Why this form. A step of an optimiser moves a weight by at most a few units in its last place. So
// the numbers of elements between changes are geometric and differences are small: Rice codes are
// near the entropy of both. Where every element changes, a gap costs one bit, and the code is that
// of the differences alone, which is what a compressed XOR would be for.
//
// Cost: one pass over both blocks, and one over the changes to choose g and v. A code is at most
// one byte longer than the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// The largest block. Bytes.
inline constexpr std::size_t kDeltaBlockBytes = std::size_t{1} << 20;

/// The form of a block's code: its first byte.
enum class DeltaForm : std::uint8_t { sparse = 1, whole = 2, nibbles = 3 };

/// Computes codes of blocks. Keeps memory between blocks: at most about 17 MB. Not thread-safe.
class DeltaEncoder {
 public:
  /// The code of `next` as a difference from `base`: the smaller of the forms, empty if the blocks
  /// are the same. An empty `base` means that there is none: the form is then whole. `width` is the
  /// size of an element in bytes. Valid until the next call.
  /// @pre width is 1, 2, 4 or 8 and divides next.size(), which is from 1 to kDeltaBlockBytes; base
  /// is empty or as large
  std::span<const std::byte> encode(std::span<const std::byte> base,
                                    std::span<const std::byte> next, int width);

 private:
  std::span<const std::byte> whole(std::span<const std::byte> next);
  /// The changes of nibbles, from those of bytes.
  void find_nibbles(std::span<const std::byte> base, std::span<const std::byte> next);

  std::vector<std::uint32_t> gaps_;     ///< of each changed element.
  std::vector<std::uint64_t> changes_;  ///< z(difference) - 1 of each.
  std::vector<std::uint32_t> nibble_gaps_;
  std::vector<std::uint8_t> nibble_changes_;
  std::vector<std::byte> code_;
};

/// Replaces a block of the base, in place, by the block that the code stands for. An empty code
/// leaves it. Reads and writes nothing outside the spans, whatever the code is. Errors: `corrupt`
/// for a code that no encoder writes for a block of this size; the block is then undefined.
/// @pre width is 1, 2, 4 or 8 and divides block.size(), which is at most kDeltaBlockBytes
Result<> apply_delta_code(std::span<const std::byte> code, int width, std::span<std::byte> block);

}  // namespace reshard
