// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace reshard {

/// Copies n bytes with non-temporal stores, for runs from about 100 KiB on that are not read soon.
/// The bytes are visible to threads and processes that see a later store.
/// @pre the ranges do not overlap
void stream_copy(std::byte* dst, const std::byte* src, std::size_t n);

}  // namespace reshard
