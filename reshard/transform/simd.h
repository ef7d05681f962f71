// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace reshard {

/// Instruction sets that the kernels of this room are written for, weakest first. Every level gives
/// the same bytes and the same fingerprints.
enum class SimdLevel : std::uint8_t {
  portable,  ///< Plain C++.
  avx2,      ///< AVX2.
  avx512,    ///< AVX-512 F, BW, DQ, VL.
};

/// "portable", "avx2", "avx512".
std::string_view name(SimdLevel level);

/// The strongest level that this processor and operating system support; asked once per process.
SimdLevel best_simd_level();

/// The level in use: best_simd_level(), or a weaker one named by the environment variable
/// RESHARD_SIMD at the first call, or what set_simd_level chose last.
SimdLevel simd_level();

/// Chooses the level from now on, for tests and measurements. Not to be called while kernels run.
/// @return what is used: `level`, or best_simd_level() where that is weaker
SimdLevel set_simd_level(SimdLevel level);

/// True where memory is fastest as one stream in order, as on EPYC; false where several streams
/// side by side are faster, as on Xeon. Asked once per process. Changes speed only.
bool reads_best_in_order();

/// Chooses the answer from now on, for tests and measurements. Not to be called while kernels run.
void set_reads_best_in_order(bool value);

}  // namespace reshard
