// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "reshard/base/value_map.h"
#include "reshard/layout/strided.h"
#include "reshard/transform/copy.h"

namespace reshard {

/// Converts `n` contiguous elements: to.map(from.map^-1(value)), rounded to nearest even. NaN keeps
/// its sign and as much of its payload as fits. The result is identical on every machine.
///
/// @pre the dtypes of both forms are convertible; the ranges do not overlap; n >= 0. No alignment
/// is required.
void convert_values(const Conversion& conversion, const std::byte* src, std::byte* dst, Index n,
                    CopyHint hint = CopyHint::cached);

/// Executes `copy` between the buffers that begin at `src` and `dst` and converts each element.
/// Allocates nothing.
///
/// @pre conversion.converts(); `copy` has the widths of the conversion's dtypes
/// (make_widening_copy); otherwise as for run_copy
void run_conversion(const StridedCopy& copy, const Conversion& conversion, const std::byte* src,
                    std::byte* dst, CopyHint hint = CopyHint::cached);

}  // namespace reshard
