// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace reshard::dcp {

/// The CRC-32 of zip archives.
std::uint32_t crc32(std::span<const std::byte> bytes);

/// The CRC-32 of bytes that come in pieces, in any order. Thread-safe.
class PiecewiseCrc32 {
 public:
  /// Starts the CRC-32 of `bytes` bytes. @pre bytes >= 0
  explicit PiecewiseCrc32(std::int64_t bytes) : bytes_(bytes) {}
  /// Adds the bytes at `offset`. @pre they lie within, and none was added before
  void add(std::int64_t offset, std::span<const std::byte> piece);
  /// @pre all bytes were added
  std::uint32_t value() const;

 private:
  std::int64_t bytes_;
  mutable std::mutex mutex_;
  std::uint32_t sum_ = 0;
};

}  // namespace reshard::dcp
