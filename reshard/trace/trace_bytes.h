// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/trace/events.h"
#include "reshard/trace/why_slow.h"

namespace reshard::trace {

/// The trace of one rank as bytes for another rank.
std::vector<std::byte> encode_trace(const RankTrace& trace);

/// Decodes untrusted bytes of rank `rank` in a group of `ranks`: what the result refers to exists,
/// times are in order and at most 2^61 ns, and memory stays proportional to the bytes. Errors:
/// `corrupt`.
Result<RankTrace> decode_trace(std::span<const std::byte> bytes, Rank rank, int ranks);

/// Rank 0's findings as bytes for other ranks; and back from untrusted bytes. Errors: `corrupt`.
std::vector<std::byte> encode_why_slow(const WhySlow& why);
Result<WhySlow> decode_why_slow(std::span<const std::byte> bytes, int ranks);

}  // namespace reshard::trace
