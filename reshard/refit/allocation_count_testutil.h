// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace reshard {

/// Calls of operator new in this process since it began, by all threads. A program that calls it
/// counts them.
std::int64_t allocations();
/// Bytes of memory that this process has in use.
std::int64_t resident_bytes();

}  // namespace reshard
