// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/direct/tile_consumer.h"
#include "reshard/exec/progress_meter.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transform/copy.h"

namespace reshard::direct {

/// The copies that gather each tile of a consumer into scratch memory.
class TileCopies {
 public:
  TileCopies() = default;

  /// `tasks` are the copies into the consumer's ranges; each task's `dst` is the first byte of a
  /// local tensor. Tasks of one tensor keep their order. `consumer` is borrowed. Errors: a task
  /// writes bytes that are in no tile; out of memory.
  static Result<TileCopies> make(const std::vector<CopyTask>& tasks, TileConsumer& consumer,
                                 int threads);

  /// Gathers all tiles once per sweep and calls the consumer, until the meter says stop. Adds each
  /// byte to the meter once, in the last sweep. Allocates nothing.
  void run(WorkerPool& pool, ProgressMeter& meter);

  Index scratch_bytes() const { return scratch_.size(); }
  /// Bytes that run() adds to the meter.
  Index bytes() const { return bytes_; }

 private:
  struct Tile {
    std::size_t first = 0, end = 0;  ///< tasks, with destinations relative to the scratch memory.
    Index bytes = 0;                 ///< delivered.
    bool whole = false;              ///< the plan delivers every byte, so none must be zeroed.
  };

  void add_tile(const std::vector<std::vector<CopyTask>>& by_tensor, std::size_t tile);
  bool sweep(int s, WorkerPool& pool, ProgressMeter& meter);
  void gather(const Tile& tile, std::span<const TileRange> ranges, int worker);

  TileConsumer* consumer_ = nullptr;
  std::vector<Tile> tiles_;
  std::vector<CopyTask> tasks_;
  std::vector<std::vector<CopyTask>> placed_;  ///< by worker: a tile's tasks with its addresses.
  HostBuffer scratch_;
  Index stride_ = 0, bytes_ = 0;
};

}  // namespace reshard::direct
