// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/arguments.h"

namespace reshard::bench {

/// Copies a tensor and fingerprints both ends: in separate passes, as a refit does that verifies
/// always, and tile by tile. Prints one line per number of threads and size of tiles. Reads
/// --threads, --rounds and --copy (the bytes of the tensor). Errors: bytes or fingerprints differ.
Result<> measure_fused_fingerprints(Arguments& arguments);

}  // namespace reshard::bench
