// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/layout/strided.h"

namespace reshard {

/// Appends to `out` the parts of `copy` whose destination bytes lie in [begin, end).
///
/// @pre each loop's destination stride is at least the extent of its inner loops and run, as for
/// boxes
///      of row-major tensors; neither bound is inside an element if the copy changes widths
/// @post the parts are disjoint; their destination bytes are those of `copy` in [begin, end)
void clip_destination(const StridedCopy& copy, Index begin, Index end,
                      std::vector<StridedCopy>& out);

/// Part i of n of a copy: a share of its outermost loop, or of its run if it has no loop. May be
/// empty (0 bytes).
StridedCopy part_of_copy(const StridedCopy& copy, Index i, Index n);

/// The first destination byte and one past the last. Bytes.
Interval destination_span(const StridedCopy& copy);
/// The first source byte and one past the last. Bytes. @pre source strides are not negative
Interval source_span(const StridedCopy& copy);

}  // namespace reshard
