// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/cuda/pinned_range.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/memory/worker_pool.h"

namespace reshard::session {

/// Host memory for the sources of one rank, and their values at one moment. Other processes of this
/// host can map it. Not thread-safe.
class SourceSnapshot {
 public:
  /// Memory for the local tensors that have memory in `source`. `threads` that copy, as WorkerPool.
  /// Errors: out of memory (says how many bytes were needed).
  static Result<std::unique_ptr<SourceSnapshot>> make(const RankBuffers& source, Rank me,
                                                      int threads);

  /// True if it has memory for the local tensors of these buffers, and for no others.
  bool fits(const RankBuffers& source) const;
  /// Copies the tensors of `source`, after the work that its stream has if they are on a GPU.
  /// Blocks. Errors: the driver's. @pre fits(source)
  Result<> take(const RankBuffers& source);
  /// The snapshot as the memory of a source. At the same addresses as long as this object lives.
  const RankBuffers& buffers() const { return buffers_; }

 private:
  SourceSnapshot(const RankBuffers& source, Rank me, int threads)
      : me_(me), buffers_(source.shared_layout()), pool_(threads) {}
  /// A range of bytes of a local tensor, copied by one thread.
  struct Part {
    SlotId slot;
    Index begin = 0, bytes = 0;
  };
  Result<> take_from_gpu(const RankBuffers& source);

  Rank me_;
  std::vector<SlotId> slots_;  ///< of the tensors with memory.
  std::vector<Part> parts_;    ///< of all of them.
  HostBuffer memory_;
  cuda::PinnedRange pinned_;  ///< ends before the memory.
  RankBuffers buffers_;
  WorkerPool pool_;
};

}  // namespace reshard::session
