// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/layout/strided.h"
#include "reshard/transform/copy.h"

namespace reshard::kernels {

/// Shorter runs go to copy_tiny. Bytes.
inline constexpr Index kTinyRun = 64;

/// run_copy for short runs. If the two sides are stored in different orders (a transposition), it
/// transposes square tiles of whole cache lines in registers; otherwise it copies run by run, in
/// order of the destination.
/// @pre 0 < copy.run_bytes < kTinyRun; otherwise as for run_copy
void copy_tiny(const StridedCopy& copy, const std::byte* src, std::byte* dst, CopyHint hint);

}  // namespace reshard::kernels
