// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/stopwatch.h"
#include "reshard/index/interval.h"
#include "reshard/memory/available_memory.h"

namespace reshard::cli {

/// Peak resident memory of this process so far, in bytes.
Index peak_rss_bytes();

/// `wanted`, or one per core that this process may use when it is 0.
int num_threads(int wanted);

/// Writes to standard output; main() reports a failed write.
void print(const std::string& text);

}  // namespace reshard::cli
