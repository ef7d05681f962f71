// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/tile_copies.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "reshard/layout/clip.h"

namespace reshard::direct {
namespace {

constexpr Index kLine = 64;

/// The tasks of each local tensor, tensors by address; tasks of one tensor keep their order.
std::vector<std::vector<CopyTask>> by_tensor(const std::vector<CopyTask>& tasks) {
  std::vector<CopyTask> sorted(tasks);
  std::ranges::stable_sort(sorted, std::less<>(), &CopyTask::dst);
  std::vector<std::vector<CopyTask>> out;
  for (const CopyTask& task : sorted) {
    if (out.empty() || out.back().front().dst != task.dst) out.emplace_back();
    out.back().push_back(task);
  }
  return out;
}

/// The tasks of the last local tensor that begins at or before this byte; null if there is none.
const std::vector<CopyTask>* tensor_at(const std::vector<std::vector<CopyTask>>& all,
                                       const std::byte* byte) {
  const auto after = std::upper_bound(
      all.begin(), all.end(), byte, [](const std::byte* b, const std::vector<CopyTask>& tasks) {
        return std::less<>()(b, static_cast<const std::byte*>(tasks.front().dst));
      });
  return after == all.begin() ? nullptr : &*std::prev(after);
}

}  // namespace

Result<TileCopies> TileCopies::make(const std::vector<CopyTask>& tasks, TileConsumer& consumer,
                                    int threads) {
  TileCopies out;
  out.consumer_ = &consumer;
  const auto tensors = by_tensor(tasks);
  Index wanted = 0, found = 0;
  std::size_t most = 0;
  for (const CopyTask& task : tasks) wanted += task.copy.bytes();
  for (std::size_t b = 0; b < consumer.size(); ++b) {
    out.add_tile(tensors, b);
    found += out.tiles_.back().bytes;
    most = std::max(most, out.tiles_.back().end - out.tiles_.back().first);
  }
  // Tiles that share rows may read columns of each other: then more than wanted.
  if (found < wanted)
    return fail(Code::invalid_argument, "the tiles contain only " + std::to_string(found) +
                                            " of the " + std::to_string(wanted) +
                                            " bytes that the plan delivers");
  out.bytes_ = found;
  out.placed_.resize(static_cast<std::size_t>(threads), std::vector<CopyTask>(most));
  out.stride_ = (consumer.scratch_bytes() + kLine - 1) / kLine * kLine;
  out.scratch_ = RESHARD_TRY(HostBuffer::allocate(out.stride_ * threads, {.prefault_threads = 1}));
  return out;
}

void TileCopies::add_tile(const std::vector<std::vector<CopyTask>>& tensors, std::size_t b) {
  std::vector<StridedCopy> parts;
  Tile tile{tasks_.size(), 0, 0, false};
  Index size = 0;
  for (const TileRange& range : consumer_->ranges(b)) {
    size += range.bytes;
    const auto* const tasks = tensor_at(tensors, range.begin);
    if (tasks == nullptr) continue;
    const Index begin = range.begin - tasks->front().dst;
    for (const CopyTask& task : *tasks) {
      parts.clear();
      clip_destination(task.copy, begin, begin + range.bytes, parts);
      for (StridedCopy& part : parts) {
        part.dst_offset += range.at - begin;
        tile.bytes += part.bytes();
        tasks_.push_back({part, task.src, nullptr, task.conversion});
      }
    }
  }
  tile.end = tasks_.size();
  tile.whole = tile.bytes == size;
  tiles_.push_back(tile);
}

void TileCopies::gather(const Tile& tile, std::span<const TileRange> ranges, int worker) {
  std::byte* const scratch = scratch_.data() + stride_ * worker;
  if (!tile.whole)
    for (const TileRange& range : ranges)
      std::memset(scratch + range.at, 0, static_cast<std::size_t>(range.bytes));
  auto& placed = placed_[static_cast<std::size_t>(worker)];
  const std::size_t n = tile.end - tile.first;
  for (std::size_t i = 0; i < n; ++i) {
    placed[i] = tasks_[tile.first + i];
    placed[i].dst = scratch;
  }
  run_copies({placed.data(), n}, CopyHint::cached);
}

bool TileCopies::sweep(int s, WorkerPool& pool, ProgressMeter& meter) {
  const bool last = s + 1 == consumer_->sweeps();
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  auto body = [&](int worker) {
    for (std::size_t b = next++; b < tiles_.size() && !stopped; b = next++) {
      gather(tiles_[b], consumer_->ranges(b), worker);
      consumer_->consume(s, b, scratch_.data() + stride_ * worker);
      if (!meter.add(worker, last ? tiles_[b].bytes : 0)) stopped = true;
    }
    copy_fence();
  };
  pool.run(body);
  return !stopped;
}

void TileCopies::run(WorkerPool& pool, ProgressMeter& meter) {
  for (int s = 0; s < consumer_->sweeps(); ++s) {
    if (!sweep(s, pool, meter)) return;
    consumer_->end_sweep(s);
  }
}

}  // namespace reshard::direct
