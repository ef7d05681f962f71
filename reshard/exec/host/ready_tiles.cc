// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/host/ready_tiles.h"

#include <algorithm>
#include <thread>

namespace reshard::host {

ReadyTiles::ReadyTiles(const Program& program)
    : program_(program), left_(new std::atomic<std::uint32_t>[program.steps.size()]) {
  const std::size_t n = program.steps.size();
  first_next_.assign(n + 1, 0);
  for (const StepId w : program.waits) ++first_next_[w.index() + 1];
  for (std::size_t s = 0; s < n; ++s) first_next_[s + 1] += first_next_[s];
  std::vector<std::uint32_t> at(first_next_);
  next_.resize(program.waits.size());
  const bool barrier = n > 0 && program.steps.front().kind == ProgramStep::Kind::barrier;
  for (std::size_t i = 0; i < n; ++i) {
    const StepId s(static_cast<std::uint32_t>(i));
    const auto waits = program.waits_of(s);
    for (const StepId w : waits) next_[at[w.index()]++] = s;
    waits_.push_back(static_cast<std::uint32_t>(waits.size()));
    if (!is_tile(s)) continue;
    ++num_tiles_;
    if (waits.empty() || (barrier && waits.size() == 1 && waits[0] == StepId(0)))
      (has_gets(s) ? free_gets_ : free_).push_back(s);
  }
  for (Queue* queue : {&urgent_, &urgent_gets_}) queue->tiles.reserve(num_tiles_);
}

bool ReadyTiles::has_gets(StepId s) const {
  for (const ProgramOp& op : program_.ops_of(program_.steps[s.index()]))
    if (op.kind == ProgramOp::Kind::get) return true;
  return false;
}

void ReadyTiles::restart() {
  for (std::size_t s = 0; s < waits_.size(); ++s)
    left_[s].store(waits_[s], std::memory_order_relaxed);
  next_free_ = 0;
  next_get_ = 0;
  undone_ = num_tiles_;
  for (Queue* queue : {&urgent_, &urgent_gets_}) {
    queue->tiles.clear();
    queue->next = 0;
    queue->left = 0;
  }
  stopped_ = false;
}

void ReadyTiles::make_ready(StepId s) {
  if (!is_tile(s)) return;
  const auto waits = program_.waits_of(s);
  const bool was_free = waits.size() == 1 && waits[0] == StepId(0) &&
                        program_.steps.front().kind == ProgramStep::Kind::barrier;
  if (was_free) return;
  Queue& queue = has_gets(s) ? urgent_gets_ : urgent_;
  const std::lock_guard lock(mutex_);
  queue.tiles.push_back(s);
  queue.left.fetch_add(1, std::memory_order_release);
  if (sleeping_ > 0) is_ready_.notify_one();
  awake_worker_0();
}

/// @pre mutex_ is locked
void ReadyTiles::awake_worker_0() {
  if (pausing_) is_done_.notify_one();
}

void ReadyTiles::complete(StepId s) {
  for (std::uint32_t i = first_next_[s.index()]; i < first_next_[s.index() + 1]; ++i)
    if (left_[next_[i].index()].fetch_sub(1, std::memory_order_acq_rel) == 1) make_ready(next_[i]);
  if (is_tile(s)) undone_.fetch_sub(1, std::memory_order_acq_rel);
}

std::optional<StepId> ReadyTiles::take_from(Queue& queue) {
  if (queue.left.load(std::memory_order_acquire) == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (queue.next == queue.tiles.size()) return std::nullopt;
  queue.left.fetch_sub(1, std::memory_order_relaxed);
  return queue.tiles[queue.next++];
}

std::optional<StepId> ReadyTiles::take_free() {
  if (next_free_.load(std::memory_order_relaxed) >= free_.size()) return std::nullopt;
  const std::size_t i = next_free_.fetch_add(1, std::memory_order_acq_rel);
  if (i < free_.size()) return free_[i];
  return std::nullopt;
}

std::optional<StepId> ReadyTiles::take(int worker) {
  if (const auto tile = take_from(urgent_)) return tile;
  if (worker == 0) {
    if (const auto tile = take_from(urgent_gets_)) return tile;
    if (next_get_ < free_gets_.size()) return free_gets_[next_get_++];
  }
  return take_free();
}

std::optional<StepId> ReadyTiles::wait_and_take(int worker) {
  while (!stopped()) {
    // Before taking: is_idle() must never find nobody working while a tile is being taken.
    busy_.fetch_add(1, std::memory_order_acq_rel);
    if (const auto tile = take(worker)) return tile;
    std::unique_lock lock(mutex_);
    busy_.fetch_sub(1, std::memory_order_acq_rel);
    awake_worker_0();
    if (stopped() || urgent_.next < urgent_.tiles.size()) continue;
    ++sleeping_;
    is_ready_.wait(lock);
    --sleeping_;
  }
  return std::nullopt;
}

bool ReadyTiles::is_idle() {
  if (others_work()) return false;
  const std::lock_guard lock(mutex_);
  const bool taken =
      urgent_.next == urgent_.tiles.size() && urgent_gets_.next == urgent_gets_.tiles.size() &&
      next_get_ == free_gets_.size() && next_free_.load(std::memory_order_acquire) >= free_.size();
  // After the queues: whoever emptied them works until rest().
  return taken && !others_work();
}

void ReadyTiles::rest() {
  const std::lock_guard lock(mutex_);
  busy_.fetch_sub(1, std::memory_order_acq_rel);
  awake_worker_0();
}

void ReadyTiles::pause(bool sleeps) {
  if (!sleeps) {
    std::this_thread::yield();
    return;
  }
  std::unique_lock lock(mutex_);
  if (stopped() || !others_work() || urgent_.next < urgent_.tiles.size() ||
      urgent_gets_.next < urgent_gets_.tiles.size())
    return;
  pausing_ = true;
  is_done_.wait(lock);
  pausing_ = false;
}

void ReadyTiles::stop() {
  stopped_.store(true, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  is_ready_.notify_all();
  awake_worker_0();
}

}  // namespace reshard::host
