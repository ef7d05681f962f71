// SPDX-License-Identifier: Apache-2.0
// The ceiling that refits are measured against: a plain copy of as many bytes by the same threads,
// in the best of the ways known. There is no other in the program; bench/ takes the ways from here.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/index/interval.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transport/control.h"

namespace reshard {

/// One way to copy bytes that do not overlap, which are there for all threads when it returns.
struct PlainWay {
  const char* name;
  void (*copy)(std::byte* dst, const std::byte* src, Index bytes);
};

/// "libc" (memcpy), "streaming" (the textbook's: whole vectors past the caches, one after the
/// other), "streams" (reshard's own, several at a time).
std::span<const PlainWay> plain_ways();

/// Part `worker` of `workers` of [0, bytes), beginning at a multiple of a page.
Interval share_of(Index bytes, int worker, int workers);

/// Memory and threads to copy with.
class PlainCopy {
 public:
  /// `bytes` are written, `source` distinct ones read, over again where they are fewer; `threads`
  /// as WorkerPool. Errors: no memory.
  static Result<std::unique_ptr<PlainCopy>> make(Index bytes, Index source, int threads);
  /// Seconds of one copy of all bytes.
  double seconds(const PlainWay& way);

 private:
  void copy_chunk(const PlainWay& way, Index at, Index end);
  PlainCopy(HostBuffer to, HostBuffer from, int threads)
      : to_(std::move(to)), from_(std::move(from)), pool_(threads) {}
  HostBuffer to_, from_;
  WorkerPool pool_;
};

/// Seconds of the best plain copy of `bytes` in this process: of `source` distinct ones, with so
/// many threads (as WorkerPool). At most 512 MiB are copied at a time. 0 where nothing is to be
/// copied or there is no memory for it.
double plain_copy_seconds(Index bytes, Index source, int threads);

/// Collective: the same where every rank copies `bytes` of its own, all at the same time: of the
/// slowest, in the best way. At most 512 MiB over all ranks, 8 MiB of each at least. 0 where no
/// rank has bytes, or one has no memory. Errors: those of the control plane.
Result<double> plain_copy_seconds(ControlPlane& control, Index bytes, int threads,
                                  Deadline deadline);

}  // namespace reshard
