// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/plan/moves.h"

namespace reshard {

/// What it costs to bring strided bytes over from memory that only Transport::get() reaches. Unit:
/// the cost of one byte of a long run, so that only proportions count. They are those of
/// process_vm_readv, in CPU time on an EPYC and a Xeon of two cores: a long run 0.12 ns for a byte,
/// each run 400 ns more, whatever its length (the kernel pins its pages); a copy between a cache
/// and memory here 0.09 ns for a byte.
inline constexpr double kRunCost = 3300, kLocalCost = 0.75;
/// What a message costs that carries one run alone: announced, granted, told done.
inline constexpr double kMessageCost = 10000;

/// Runs that the source's side of the copy has: destination runs that follow each other in the
/// source are one.
Index source_runs(const StridedCopy& copy);

/// Cost of reading each run to where it belongs.
double cost_of_runs(const StridedCopy& copy);

/// Cost of reading all from the first to the last source byte into the cache, and of copying what
/// is wanted from there.
double cost_of_sweep(const StridedCopy& copy);

/// Cost of the cheaper of the two, for a copy whose outer loops may lie far apart.
double cost_of_get(const StridedCopy& copy);

/// Cost of the same by messages: packed into shared staging, copied from there and unpacked, but
/// for what is one run of at least `in_place` bytes on a side. Of both ranks together.
double cost_of_message(const StridedCopy& copy, Index in_place);

/// Cost of bytes that are copied from mapped memory, and of the same by messages.
inline constexpr double kMappedCost = kLocalCost, kMappedMessageCost = 1 + 2 * kLocalCost;

/// Runs from which on sweeping never pays. Bytes.
inline constexpr Index kLongRun = 4400;

}  // namespace reshard
