// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "bench/common/turns.h"
#include "reshard/memory/worker_pool.h"

namespace reshard::bench {

/// Plain copies from `src` to `dst` with all threads of the pool, one for each of plain_ways().
/// Borrows the pool and the memory.
std::vector<Contender> plain_copies(WorkerPool& pool, std::byte* dst, const std::byte* src,
                                    Index bytes);

/// Read-only passes: "in_order" and "streams". Borrows the pool and the memory.
std::vector<Contender> read_passes(WorkerPool& pool, const std::byte* src, Index bytes);

}  // namespace reshard::bench
