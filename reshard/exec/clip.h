// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/layout/strided.h"

namespace reshard {

/// Appends to `out` the parts of `copy` whose destination bytes lie in [begin, end).
///
/// @pre the destination advances with the loops: each loop's destination stride is at least what
/// its inner loops and
///      run cover (so it is for boxes of row-major tensors); no bound lies inside an element of a
///      copy that changes widths
/// @post the parts are disjoint and their destination bytes are those of `copy` in [begin, end)
void clip_destination(const StridedCopy& copy, Index begin, Index end,
                      std::vector<StridedCopy>& out);

/// First destination byte, and one past the last. Bytes.
Interval destination_span(const StridedCopy& copy);
/// First source byte, and one past the last. Bytes. @pre source strides are not negative
Interval source_span(const StridedCopy& copy);

}  // namespace reshard
