// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reshard {

/// The options of the trace of a refit.
struct TraceOptions {
  /// The file that rank 0 writes after each refit, replacing the last one; docs/trace.md has its
  /// content. Empty: no trace. Ranks that are not 0 only need it not to be empty.
  std::string path;
  /// Rate of a plain copy (exec/plain_copy.h) of one rank's threads while all ranks copy, for the
  /// bound that refits are compared with. 0: the best rate in the traced refit.
  double copy_bytes_per_second = 0;
};

}  // namespace reshard
