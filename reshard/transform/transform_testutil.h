// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "reshard/index/interval.h"
#include "reshard/transform/simd.h"

namespace reshard {

/// The levels that this machine can run, weakest first.
std::vector<SimdLevel> simd_levels();

/// Sets a level until the end of its scope, then the one before. One at a time, in one thread.
class SimdLevelScope {
 public:
  explicit SimdLevelScope(SimdLevel level) : before_(simd_level()) { set_simd_level(level); }
  ~SimdLevelScope() { set_simd_level(before_); }
  SimdLevelScope(const SimdLevelScope&) = delete;
  SimdLevelScope& operator=(const SimdLevelScope&) = delete;

 private:
  SimdLevel before_;
};

/// `size` bytes that depend on `seed` alone.
std::vector<std::byte> random_bytes(Index size, std::uint64_t seed);

}  // namespace reshard
