// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace reshard {

/// Bytes of a cache line.
inline constexpr std::int64_t kCacheLine = 64;

/// `bytes`, rounded up to whole cache lines.
constexpr std::int64_t whole_lines(std::int64_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace reshard
