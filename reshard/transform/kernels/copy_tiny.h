// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/layout/strided.h"
#include "reshard/transform/copy.h"

namespace reshard::kernels {

/// Runs shorter than this go to copy_tiny. Bytes.
inline constexpr Index kTinyRun = 64;

/// run_copy for short runs: where the two sides are stored in different orders (a transposition),
/// square tiles of whole cache lines are turned in registers; else run by run, in order of the
/// destination.
/// @pre 0 < copy.run_bytes < kTinyRun, and what run_copy asks for
void copy_tiny(const StridedCopy& copy, const std::byte* src, std::byte* dst, CopyHint hint);

}  // namespace reshard::kernels
