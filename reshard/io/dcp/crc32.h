// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

namespace reshard::dcp {

/// The CRC-32 of zip archives, by zlib.
std::uint32_t crc32(std::span<const std::byte> bytes);

/// The CRC-32 of bytes that come in pieces, in any order. Keeps a few words for each piece.
/// Thread-safe.
class PiecewiseCrc32 {
 public:
  /// Adds the bytes at `offset`. @pre they overlap no piece that was added before
  void add(std::int64_t offset, std::span<const std::byte> piece);
  /// @pre the pieces that were added leave no gap
  std::uint32_t value() const;

 private:
  struct Piece {
    std::uint32_t crc = 0;
    std::int64_t bytes = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::int64_t, Piece> pieces_;  ///< by offset.
};

}  // namespace reshard::dcp
