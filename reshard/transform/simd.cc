// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/simd.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

namespace reshard {
namespace {

constexpr std::array kLevels = {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512};

SimdLevel detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return SimdLevel::avx512;
  }
  if (__builtin_cpu_supports("avx2")) return SimdLevel::avx2;
#endif
  return SimdLevel::portable;
}

SimdLevel first_level() {
  const char* const wanted = std::getenv("RESHARD_SIMD");
  for (SimdLevel level : kLevels)
    if (wanted != nullptr && name(level) == wanted) return std::min(level, best_simd_level());
  return best_simd_level();
}

std::atomic<SimdLevel>& current() {
  static std::atomic<SimdLevel> level{first_level()};
  return level;
}

}  // namespace

std::string_view name(SimdLevel level) {
  switch (level) {
    case SimdLevel::portable: return "portable";
    case SimdLevel::avx2: return "avx2";
    case SimdLevel::avx512: return "avx512";
  }
  return "portable";
}

SimdLevel best_simd_level() {
  static const SimdLevel best = detect();
  return best;
}

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

SimdLevel set_simd_level(SimdLevel level) {
  current().store(std::min(level, best_simd_level()), std::memory_order_relaxed);
  return simd_level();
}

}  // namespace reshard
