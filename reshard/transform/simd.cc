// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/simd.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace reshard {
namespace {

using enum SimdLevel;

constexpr std::array kNames = {std::pair{portable, "portable"}, std::pair{neon, "neon"},
                               std::pair{avx2, "avx2"}, std::pair{avx512, "avx512"}};

// What this program may run on; detect() says how many of them.
#if defined(__x86_64__)
constexpr std::array kLevels = {portable, avx2, avx512};
#elif defined(__aarch64__)
constexpr std::array kLevels = {portable, neon};
#else
constexpr std::array kLevels = {portable};
#endif

std::size_t detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return 1;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return 2;
  }
#endif
  return kLevels.size();
}

/// The strongest available level that is not above `level`.
SimdLevel reachable(SimdLevel level) {
  SimdLevel found = portable;
  for (const SimdLevel each : available_simd_levels())
    if (each <= level) found = each;
  return found;
}

SimdLevel first_level() {
  const char* const wanted = std::getenv("RESHARD_SIMD");
  for (const auto& [level, its_name] : kNames)
    if (wanted != nullptr && std::string_view(its_name) == wanted) return reachable(level);
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
  for (const auto& [each, its_name] : kNames)
    if (each == level) return its_name;
  return kNames.front().second;
}

std::span<const SimdLevel> available_simd_levels() {
  static const std::size_t available = detect();
  return std::span(kLevels).first(available);
}

SimdLevel best_simd_level() { return available_simd_levels().back(); }

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

SimdLevel set_simd_level(SimdLevel level) {
  current().store(reachable(level), std::memory_order_relaxed);
  return simd_level();
}

bool reads_best_in_order() { return in_order().load(std::memory_order_relaxed); }

void set_reads_best_in_order(bool value) { in_order().store(value, std::memory_order_relaxed); }

}  // namespace reshard
