// SPDX-License-Identifier: Apache-2.0
// What memory allows: plain ways to read, written here and sharing nothing with what is measured.
// Those to copy are in reshard/exec/plain_copy.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/index/interval.h"

namespace reshard::bench {

/// Reads every byte once, from the first to the last; a word that depends on all of them.
std::uint64_t read_in_order(const std::byte* src, Index bytes);

/// The same on eight streams a page apart, which keeps more lines under way.
std::uint64_t read_eight_streams(const std::byte* src, Index bytes);

}  // namespace reshard::bench
