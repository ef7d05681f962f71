// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace reshard {

/// Copies n bytes past the caches of the destination, for runs from some 100 KiB on that nobody
/// reads soon. All is visible to other threads and processes that learn of it by a later store.
/// @pre the ranges do not overlap
void stream_copy(std::byte* dst, const std::byte* src, std::size_t n);

}  // namespace reshard
