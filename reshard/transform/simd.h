// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace reshard {

/// The instruction sets that kernels are written for, the weakest of each processor first. All give
/// identical results.
enum class SimdLevel : std::uint8_t {
  portable,  ///< Plain C++.
  neon,      ///< Advanced SIMD of arm64.
  avx2,      ///< AVX2.
  avx512,    ///< AVX-512 F, BW, DQ, VL.
};

/// "portable", "neon", "avx2", "avx512".
std::string_view name(SimdLevel level);

/// The levels that processor and operating system support, weakest first; determined once per
/// process.
std::span<const SimdLevel> available_simd_levels();

/// The last of them.
SimdLevel best_simd_level();

/// The level in use: the last one given to set_simd_level(), else the one that the environment
/// variable RESHARD_SIMD names at the first call, else best_simd_level(). Always an available one.
SimdLevel simd_level();

/// Sets the level, for tests and benchmarks. Must not be called while kernels run.
/// @return the level in use: the strongest available one that is not above `level`
SimdLevel set_simd_level(SimdLevel level);

/// True if memory is fastest as one stream in order (EPYC), false if several parallel streams are
/// faster (Xeon). Determined once per process. Affects speed only.
bool reads_best_in_order();

/// Sets the answer, for tests and benchmarks. Must not be called while kernels run.
void set_reads_best_in_order(bool value);

}  // namespace reshard
