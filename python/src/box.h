// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python/src/values.h"

namespace reshard::python {

/// A box that a caller gives: a reshard.Box, or pairs (begin, end). Throws InvalidArgumentError for
/// other intervals and for more than kMaxDims of them.
Box box_of(const nb::handle& value);

}  // namespace reshard::python
