// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "reshard/program/program.h"

namespace reshard::host {

/// The tiles of a program that can run now. Workers take them; whoever completes a step makes the
/// steps free that waited for it. Tiles that messages wait for, or that waited for messages, come
/// before those that wait for nothing, because they keep other ranks waiting. Allocates nothing
/// after construction.
class ReadyTiles {
 public:
  explicit ReadyTiles(const Program& program);

  /// Begins a run.
  void restart();
  /// Worker 0: completes a step that is not a tile. Any worker: completes a tile it took.
  void complete(StepId s);
  /// True if a step waits for nothing any more.
  bool is_free(StepId s) const { return left_[s.index()].load(std::memory_order_acquire) == 0; }

  /// A tile that can run; none if there is none now. Tiles with gets are for worker 0 only.
  std::optional<StepId> take(int worker);
  /// For the other workers: waits for a tile; none once stop() was called or no tile is left.
  /// After running the tile, they call rest().
  std::optional<StepId> wait_and_take(int worker);
  void rest();
  /// Worker 0: true if no worker has a tile and no tile can run. Then nothing becomes free until
  /// worker 0 completes a step. False may be out of date.
  bool is_idle();
  /// Worker 0, if it has nothing to do while others work. Waits until a tile is complete if
  /// `sleeps`; otherwise lets others run for a moment.
  void pause(bool sleeps);
  bool all_done() const { return undone_.load(std::memory_order_acquire) == 0; }

  /// Ends the run for all workers, early or at its end.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  /// Tiles in the order in which they became ready. Guarded by mutex_, except `left`.
  struct Queue {
    std::vector<StepId> tiles;
    std::size_t next = 0;
    std::atomic<std::size_t> left{0};
  };

  bool is_tile(StepId s) const { return program_.steps[s.index()].kind == ProgramStep::Kind::tile; }
  bool others_work() const { return busy_.load(std::memory_order_acquire) > 0; }
  bool has_gets(StepId s) const;
  void make_ready(StepId s);
  std::optional<StepId> take_from(Queue& queue);
  std::optional<StepId> take_free();
  void awake_worker_0();

  const Program& program_;
  std::vector<std::uint32_t> first_next_;  ///< step s makes next_[first_next_[s]..) wait less.
  std::vector<StepId> next_;
  std::vector<std::uint32_t> waits_;                    ///< number of steps that each waits for.
  std::vector<StepId> free_, free_gets_;                ///< that wait for a first barrier at most.
  std::unique_ptr<std::atomic<std::uint32_t>[]> left_;  ///< of waits_, in this run.
  std::size_t num_tiles_ = 0;

  std::atomic<std::size_t> next_free_{0}, undone_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> stopped_{false};
  std::size_t next_get_ = 0;  ///< of free_gets_; worker 0.

  std::mutex mutex_;
  std::condition_variable is_ready_, is_done_;  ///< for the other workers; for worker 0.
  Queue urgent_, urgent_gets_;
  int sleeping_ = 0;
  bool pausing_ = false;
};

}  // namespace reshard::host
