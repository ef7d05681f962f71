// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "reshard/exec/worker_pool.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/program/compile_batch.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// The memory of one transfer, or of one copy of a batch. Borrowed.
struct BatchMemory {
  const std::byte* src = nullptr;  ///< of what is sent or copied.
  std::byte* dst = nullptr;        ///< of what is received or copied.
};

/// Runs batches of transfers over a transport, one after another. Keeps threads and staging from
/// one batch to the next. Not thread-safe.
class BatchExecutor {
 public:
  /// Borrows both. `staging_bytes` as compile_batch(); `threads` as WorkerPool.
  BatchExecutor(Transport& transport, ControlPlane& control, Index staging_bytes, int threads)
      : transport_(transport),
        control_(control),
        staging_bytes_(staging_bytes),
        threads_(threads) {}

  /// Collective over the ranks that the batch names. `memory`: of all transfers, then of all
  /// copies. Errors: those of compile_batch(); out of memory; the transport's. After an error with
  /// messages in progress the group is aborted.
  Result<> run(const TransferBatch& batch, std::span<const BatchMemory> memory, Deadline deadline);

  /// Ends the threads and frees the staging until the next run().
  void release();

 private:
  Transport& transport_;
  ControlPlane& control_;
  Index staging_bytes_;
  int threads_;
  std::optional<WorkerPool> pool_;
  HostBuffer staging_;
};

}  // namespace reshard
