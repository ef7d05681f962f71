// SPDX-License-Identifier: Apache-2.0
// The ceiling of read-only passes: plain loops that share nothing with the measured code. Plain
// copies are in reshard/exec/plain_copy.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/index/interval.h"

namespace reshard::bench {

/// Reads every byte once, in order. @return a word that depends on all of them
std::uint64_t read_in_order(const std::byte* src, Index bytes);

/// The same as eight streams that are a page apart, which keeps more cache lines in flight.
std::uint64_t read_eight_streams(const std::byte* src, Index bytes);

}  // namespace reshard::bench
