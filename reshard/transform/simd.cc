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

bool detect_in_order() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return !__builtin_cpu_is("intel");
#else
  return true;
#endif
}

std::atomic<bool>& in_order() {
  static std::atomic<bool> value{detect_in_order()};
  return value;
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

bool reads_best_in_order() { return in_order().load(std::memory_order_relaxed); }

void set_reads_best_in_order(bool value) { in_order().store(value, std::memory_order_relaxed); }

}  // namespace reshard
