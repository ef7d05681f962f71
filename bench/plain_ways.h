// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "bench/turns.h"
#include "reshard/exec/worker_pool.h"

namespace reshard::bench {

/// Part `worker` of `workers` of [0, bytes), beginning at a multiple of a page.
Interval share_of(Index bytes, int worker, int workers);

/// The plain copies of `bytes` from `src` to `dst` with all threads of the pool: "libc" (memcpy),
/// "streaming" (the textbook's), "streams" (reshard's own contiguous copy). The pool and the memory
/// are borrowed.
std::vector<Contender> plain_copies(WorkerPool& pool, std::byte* dst, const std::byte* src,
                                    Index bytes);

/// The read-only passes over `bytes`: "in_order", "streams". The pool and the memory are borrowed.
std::vector<Contender> read_passes(WorkerPool& pool, const std::byte* src, Index bytes);

}  // namespace reshard::bench
