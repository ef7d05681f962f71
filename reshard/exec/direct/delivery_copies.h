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

namespace reshard::direct {

/// Returns the address of a source's local tensor in this process, or null if only the transport
/// reaches it. An error if it has no memory.
using SourceAddress = std::function<Result<const std::byte*>(Rank, SlotId)>;

/// The copies that bring some destination ranks their tensors.
struct DeliveryTasks {
  std::vector<CopyTask> tasks;      ///< between addresses of this process.
  std::vector<std::size_t> groups;  ///< of tasks, as in make_units().
  std::vector<Move> elsewhere;      ///< copies whose source has no address in this process.
  Index bytes = 0;                  ///< delivered by tasks and elsewhere.
};

/// DeliveryTasks cut into units.
struct DeliveryCopies {
  CopyUnits units;              ///< between addresses of this process.
  std::vector<Move> elsewhere;  ///< copies whose source has no address in this process.
  Index bytes = 0;              ///< delivered by units and elsewhere.
  Index copies = 0;             ///< number of tasks and elsewhere.
};

/// Resolves all deliveries to the destination ranks to addresses, ordered to read and write each
/// cache line once if possible. Errors: a destination tensor without memory (named); those of
/// `source`.
Result<DeliveryTasks> delivery_tasks(const Planner& planner, std::span<const Rank> destinations,
                                     const SourceAddress& source, const RankBuffers& target);
Result<DeliveryCopies> delivery_copies(const Planner& planner, std::span<const Rank> destinations,
                                       const SourceAddress& source, const RankBuffers& target);

/// Runs the units on all workers until all are done or the meter says stop. The copied bytes are
/// visible to any thread that then synchronises with this one. Allocates nothing.
void run_units(const CopyUnits& units, WorkerPool& pool, ProgressMeter& meter);

/// "source buffer of local tensor 'x' on rank 3 is not set"
Error missing_memory(const char* side, const ModelLayout& layout, Rank r, SlotId slot);

}  // namespace reshard::direct
