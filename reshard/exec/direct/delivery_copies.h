// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "reshard/exec/direct/copy_units.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/plan/moves.h"

namespace reshard {

/// Where a source's local tensor begins in this process; null where only the transport reaches it.
/// An error where it is nowhere.
using SourceAddress = std::function<Result<const std::byte*>(Rank, SlotId)>;

/// All that some destination ranks must copy to have their tensors, as it is found.
struct DeliveryTasks {
  std::vector<CopyTask> tasks;      ///< between addresses of this process.
  std::vector<std::size_t> groups;  ///< of tasks, as make_units() takes them.
  std::vector<Move> elsewhere;      ///< whose source has no address here.
  Index bytes = 0;                  ///< of both, at the destination.
};

/// The same, cut into units.
struct DeliveryCopies {
  CopyUnits units;              ///< between addresses of this process.
  std::vector<Move> elsewhere;  ///< whose source has no address here.
  Index bytes = 0;              ///< of both, at the destination.
  Index copies = 0;             ///< of both.
};

/// Resolves the deliveries of the destination ranks to addresses, in an order that reads and writes
/// each line of memory once where it can. Errors: a destination tensor without memory (named);
/// those of `source`.
Result<DeliveryTasks> delivery_tasks(const Planner& planner, std::span<const Rank> destinations,
                                     const SourceAddress& source, const RankBuffers& target);
Result<DeliveryCopies> delivery_copies(const Planner& planner, std::span<const Rank> destinations,
                                       const SourceAddress& source, const RankBuffers& target);

/// Runs the units on all workers, until they are done or the meter says stop; what was copied is
/// visible to who synchronises with this thread next. Allocates nothing.
void run_units(const CopyUnits& units, WorkerPool& pool, ProgressMeter& meter);

/// "source buffer of local tensor 'x' on rank 3 is not set"
Error missing_memory(const char* side, const ModelLayout& layout, Rank r, SlotId slot);

}  // namespace reshard
