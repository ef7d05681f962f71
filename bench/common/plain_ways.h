// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "bench/common/turns.h"
#include "reshard/exec/worker_pool.h"

namespace reshard::bench {

/// The plain copies of `bytes` from `src` to `dst` with all threads of the pool: plain_ways(). The
/// pool and the memory are borrowed.
std::vector<Contender> plain_copies(WorkerPool& pool, std::byte* dst, const std::byte* src,
                                    Index bytes);

/// The read-only passes over `bytes`: "in_order", "streams". The pool and the memory are borrowed.
std::vector<Contender> read_passes(WorkerPool& pool, const std::byte* src, Index bytes);

}  // namespace reshard::bench
