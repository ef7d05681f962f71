// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "reshard/index/interval.h"
#include "reshard/transform/simd.h"

namespace reshard {

/// What decides which loops run: both change speed only.
struct KernelChoice {
  SimdLevel level;
  bool in_order;  ///< see reads_best_in_order
};

/// Every level that this machine can run, weakest first, with both ways to read memory.
std::vector<KernelChoice> kernel_choices();

/// Makes a choice until the end of its scope, then the one before. One at a time, in one thread.
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

/// `size` bytes that depend on `seed` alone.
std::vector<std::byte> random_bytes(Index size, std::uint64_t seed);

}  // namespace reshard
