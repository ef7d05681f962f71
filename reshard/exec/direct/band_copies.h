// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/direct/tile_consumer.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transform/copy.h"

namespace reshard {

/// The copies that bring each band of a taker into scratch memory.
class BandCopies {
 public:
  BandCopies() = default;

  /// `tasks`: copies into the taker's ranges, each task's `dst` the first byte of a local tensor;
  /// neighbours in it stay neighbours. `taker` is borrowed. Errors: bytes of a task in no band; out
  /// of memory.
  static Result<BandCopies> make(const std::vector<CopyTask>& tasks, TileConsumer& taker,
                                 int threads);

  /// Brings all bands, as often as the taker wants, or until the meter says stop; after each sweep
  /// the taker is told. Adds each byte to the meter once, in the last sweep. Allocates nothing.
  void run(WorkerPool& pool, ProgressMeter& meter);

  Index scratch_bytes() const { return scratch_.size(); }
  /// What run() adds to the meter.
  Index bytes() const { return bytes_; }

 private:
  struct Band {
    std::size_t first = 0, end = 0;  ///< tasks; their destinations count from the scratch memory.
    Index bytes = 0;                 ///< delivered.
    bool whole = false;              ///< nothing to be zeroed.
  };

  void add_band(const std::vector<std::vector<CopyTask>>& by_tensor, std::size_t band);
  bool sweep(int s, WorkerPool& pool, ProgressMeter& meter);
  void bring(const Band& band, std::span<const BandRange> ranges, int worker);

  TileConsumer* taker_ = nullptr;
  std::vector<Band> bands_;
  std::vector<CopyTask> tasks_;
  std::vector<std::vector<CopyTask>> placed_;  ///< by worker: a band's tasks with addresses.
  HostBuffer scratch_;
  Index stride_ = 0, bytes_ = 0;
};

}  // namespace reshard
