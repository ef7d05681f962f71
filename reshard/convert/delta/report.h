// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/convert/delta.h"
#include "reshard/io/delta/delta_file.h"

namespace reshard::delta {

/// The contents of a delta; `delta_bytes` and `seconds` are 0.
DeltaReport report_of(const DeltaLink& link, const DeltaIndex& index);

}  // namespace reshard::delta
