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
/// Called when these bytes of a source tensor have been read for a piece of output, so that mapped
/// pages behind the reader can be released. Another piece may read them again. Called by several
/// threads. May be empty.
using StreamDone = std::function<void(Rank src, SlotId slot, Index offset, Index bytes)>;

/// Called some pieces before these bytes of a source tensor are read, so that they can be fetched
/// from the disk meanwhile. Called by several threads. May be empty.
using StreamAhead = std::function<void(Rank src, SlotId slot, Index offset, Index bytes)>;

/// Returns all bytes of a source tensor, valid while the result is kept. Called once for each
/// tensor that is read, before the first byte arrives. An error ends the stream.
using StreamSource = std::function<Result<std::shared_ptr<const std::byte>>(Rank src, SlotId slot)>;

struct StreamOptions {
  /// The most memory for output, all threads together, beside a few rows of blocks of what is
  /// converted.
  Index buffer_bytes = Index{64} << 20;
  int threads = 0;  ///< as WorkerPool.
  Progress progress;
  StreamAhead ahead;
  /// Conversions on the way: the plan's source, or target, is the values of this layout; what is
  /// read, or arrives, is its stored form. Null: none.
  const QuantisedLayout *from = nullptr, *into = nullptr;
};

/// Produces local tensors of one destination rank piece by piece from sources in memory (mapped
/// files), in bounded memory: for conversions at rest. `slots` (of what arrives) begin in this
/// order. Errors: the first error of the sink; those of compile_file(); cancelled.
Result<> stream_rank(const Planner& planner, const RankBuffers& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink, const StreamDone& done,
                     const StreamOptions& options);

/// The same for sources that are produced when they are read, and kept until the end.
Result<> stream_rank(const Planner& planner, const StreamSource& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink, const StreamDone& done,
                     const StreamOptions& options);

}  // namespace reshard
