// SPDX-License-Identifier: Apache-2.0
// The ceiling that refits are compared with: a plain copy of the same number of bytes by the same
// threads, in the fastest way known. bench/ and the program use no other.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/transport/control.h"

namespace reshard {

/// A way to copy bytes that do not overlap. When it returns, all threads see the copied bytes.
struct PlainWay {
  const char* name;
  void (*copy)(std::byte* dst, const std::byte* src, Index bytes);
};

/// "libc" (memcpy), "streaming" (non-temporal stores of whole vectors, one after another),
/// "streams" (reshard's own: several streams at once).
std::span<const PlainWay> plain_ways();

/// Part `worker` of `workers` of [0, bytes); begins at a multiple of the page size.
Interval share_of(Index bytes, int worker, int workers);

/// The memory and threads of a plain copy.
class PlainCopy {
 public:
  /// A copy writes `bytes` and reads `source` distinct bytes, repeatedly if they are fewer.
  /// `threads` as WorkerPool. Errors: out of memory.
  static Result<std::unique_ptr<PlainCopy>> make(Index bytes, Index source, int threads);
  /// Runs one copy of all bytes; returns its seconds.
  double seconds(const PlainWay& way);

 private:
  void copy_chunk(const PlainWay& way, Index at, Index end);
  PlainCopy(HostBuffer to, HostBuffer from, int threads)
      : to_(std::move(to)), from_(std::move(from)), pool_(threads) {}
  HostBuffer to_, from_;
  WorkerPool pool_;
};

/// Seconds of the fastest plain copy of `bytes` from `source` distinct ones in this process, with
/// `threads` as WorkerPool. Copies at most 512 MiB at a time and scales the result. 0 if `bytes` is
/// 0 or memory is short.
double plain_copy_seconds(Index bytes, Index source, int threads);

/// Collective. The same for ranks that copy at the same time, `bytes` each: the seconds of the
/// slowest rank, in the fastest way. Copies at most 512 MiB over all ranks, but 8 MiB on each, and
/// scales the result. 0 if no rank has bytes or one lacks memory. Errors: the control plane's.
Result<double> plain_copy_seconds(ControlPlane& control, Index bytes, int threads,
                                  Deadline deadline);

}  // namespace reshard
