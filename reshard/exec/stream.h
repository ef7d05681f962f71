// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/plan/planner.h"

namespace reshard {

/// Receives row-major bytes [offset, offset + bytes.size()) of a destination rank's local tensor.
/// Every byte arrives exactly once; padding arrives as zeros. Called by several threads for
/// different ranges.
using StreamSink =
    std::function<Result<>(Rank r, SlotId slot, Index offset, std::span<const std::byte> bytes)>;
/// Called with source memory that the stream is about to read, so that mapped pages can be fetched
/// from the disk meanwhile, or that it has read, so that they can be released. What is read again
/// comes again. Neighbouring ranges come as one, of a MiB and more if the stream reads as much.
/// Called by several threads. May be empty.
using StreamHint = std::function<void(std::span<const std::byte> memory)>;

/// Returns all bytes of a source tensor, valid while the result is kept. Called once for each
/// tensor that is read, before the first byte arrives. An error ends the stream.
using StreamSource = std::function<Result<std::shared_ptr<const std::byte>>(Rank src, SlotId slot)>;

struct StreamOptions {
  /// The most memory for output, all threads together, beside a few rows of blocks of what is
  /// converted.
  Index buffer_bytes = Index{64} << 20;
  int threads = 0;  ///< as WorkerPool.
  Progress progress;
  StreamHint ahead, done;  ///< what will be read soon, and what was read.
  /// Conversions on the way: the plan's source, or target, is the values of this layout; what is
  /// read, or arrives, is its stored form. Null: none.
  const QuantisedLayout *from = nullptr, *into = nullptr;
};

/// Produces local tensors of one destination rank piece by piece from sources in memory (mapped
/// files), in bounded memory: for conversions at rest. `slots` (of what arrives) begin in this
/// order. Errors: the first error of the sink; those of compile_file(); cancelled.
Result<> stream_rank(const Planner& planner, const RankBuffers& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink,
                     const StreamOptions& options);

/// The same for sources that are produced when they are read, and kept until the end.
Result<> stream_rank(const Planner& planner, const StreamSource& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink,
                     const StreamOptions& options);

}  // namespace reshard
