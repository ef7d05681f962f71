// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the definition in fingerprint.h. All kernels agree with it bit for bit. Plain
// functions of integers, so that GPU sources can include them (with nvcc's
// --expt-relaxed-constexpr, for mix64).
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/base/hash.h"
#include "reshard/transform/float_bits.h"

namespace reshard {

/// Bytes per part of a row, and 32-bit words per part.
inline constexpr std::size_t kPartBytes = 16384, kPartWords = kPartBytes / 4;

/// A_l[part] of the definition, for key_l.
RESHARD_HOST_DEVICE constexpr std::uint64_t part_weight(std::uint64_t key, std::uint64_t part) {
  return mix64(key + part) | 1;
}

/// B_l[word] of the definition.
RESHARD_HOST_DEVICE constexpr std::uint32_t word_weight(std::size_t lane, std::size_t word) {
  constexpr std::uint64_t kTableSeed = 0x7265736861726421ULL;
  return static_cast<std::uint32_t>(mix64(kTableSeed + lane * kPartWords + word) >> 32) | 1;
}

/// The contribution of a 32-bit word of a part, or of some of its bytes at their places in it, to
/// the part's sum over columns.
RESHARD_HOST_DEVICE constexpr std::uint64_t weighted(std::uint32_t word, std::uint32_t weight) {
  return std::uint64_t{word} * weight;
}

}  // namespace reshard
