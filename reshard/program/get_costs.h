// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/plan/moves.h"

namespace reshard::program {

/// Costs of reading strided bytes from memory that only Transport::get() reaches. The unit is the
/// cost of one byte of a long run; only proportions matter. Measured with process_vm_readv, as CPU
/// time on an EPYC and a two-core Xeon: 0.12 ns per byte of a long run; 400 ns more per run,
/// whatever its length (the kernel pins its pages); 0.09 ns per byte of a copy between a cache and
/// memory.
inline constexpr double kRunCost = 3300, kLocalCost = 0.75;
/// Cost of a message that carries a single run: rts, cts and completion.
inline constexpr double kMessageCost = 10000;

/// Number of runs on the source's side of the copy: destination runs that are adjacent in the
/// source count as one.
Index source_runs(const StridedCopy& copy);

/// Cost of reading each run into its place.
double cost_of_runs(const StridedCopy& copy);

/// Cost of reading everything from the first to the last source byte into a cache, and copying the
/// wanted bytes from there.
double cost_of_sweep(const StridedCopy& copy);

/// Cost of the cheaper way, for a copy whose outer loops may have large strides.
double cost_of_get(const StridedCopy& copy);

/// Cost of the same copy by messages, both ranks together: packed into shared staging, copied and
/// unpacked; a side on which it is one run of at least `in_place` bytes needs no staging.
double cost_of_message(const StridedCopy& copy, Index in_place);

/// Cost of a byte copied from mapped memory, and of a byte sent by messages instead.
inline constexpr double kMappedCost = kLocalCost, kMappedMessageCost = 1 + 2 * kLocalCost;

/// Runs of at least this length are never worth sweeping. Bytes.
inline constexpr Index kLongRun = 4400;

}  // namespace reshard::program
