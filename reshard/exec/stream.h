// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"

namespace reshard {

struct StreamOptions {
  Index buffer_bytes =
      Index{64} << 20;  ///< most memory for output in flight, all threads together.
  int threads = 0;
  Progress progress;
};

/// Takes the bytes of a destination tensor: the row-major bytes [offset, offset + bytes.size()) of
/// the rank's slot. Every byte arrives exactly once; padding arrives as zeros. Called from several
/// threads for different ranges.
using StreamSink =
    std::function<Result<>(Rank r, SlotId slot, Index offset, std::span<const std::byte> bytes)>;
/// Told that these bytes of a source tensor have been read for a piece of output, so that mapped
/// pages behind the reader can be given back. They may be read again for another piece. Called from
/// several threads. May be empty.
using StreamDone = std::function<void(Rank src, SlotId slot, Index offset, Index bytes)>;

/// The bytes of a source tensor, whole, for as long as what is returned is kept. Called from
/// several threads, once for each piece that is read. Errors end the stream.
using StreamSource = std::function<Result<std::shared_ptr<const std::byte>>(Rank src, SlotId slot)>;

/// Produces the local tensors of one destination rank piece by piece, from sources in memory
/// (mapped files), in bounded memory: for conversions at rest. Slots in the order given. Errors:
/// those of the sink, first one wins; cancelled.
Result<> stream_rank(const Planner& planner, const RankBuffers& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink, const StreamDone& done,
                     const StreamOptions& options);

/// The same from sources that are made when they are read.
Result<> stream_rank(const Planner& planner, const StreamSource& source, Rank dst,
                     std::span<const SlotId> slots, const StreamSink& sink, const StreamDone& done,
                     const StreamOptions& options);

}  // namespace reshard
