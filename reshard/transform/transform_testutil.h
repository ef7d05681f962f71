// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "reshard/index/interval.h"
#include "reshard/transform/simd.h"

namespace reshard {

/// The settings that select kernels. Both affect speed only.
struct KernelChoice {
  SimdLevel level;
  bool in_order;  ///< see reads_best_in_order
};

/// All levels that this machine supports, weakest first, each with both ways to read memory.
std::vector<KernelChoice> kernel_choices();

/// Selects kernels until the end of the scope, then restores the previous choice. Not thread-safe.
class KernelScope {
 public:
  explicit KernelScope(KernelChoice choice) : before_{simd_level(), reads_best_in_order()} {
    choose(choice);
  }
  ~KernelScope() { choose(before_); }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  static void choose(KernelChoice choice) {
    set_simd_level(choice.level);
    set_reads_best_in_order(choice.in_order);
  }
  KernelChoice before_;
};

/// `size` pseudo-random bytes that depend only on `seed`.
std::vector<std::byte> random_bytes(Index size, std::uint64_t seed);

}  // namespace reshard
