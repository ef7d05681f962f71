// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/direct/band_copies.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "reshard/exec/clip.h"

namespace reshard {
namespace {

constexpr Index kLine = 64;

/// Tasks of one local tensor each, tensors by address; inside in the order given.
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

/// The tasks of the local tensor that has this byte; null where none can.
const std::vector<CopyTask>* tensor_at(const std::vector<std::vector<CopyTask>>& all,
                                       const std::byte* byte) {
  const auto after = std::upper_bound(
      all.begin(), all.end(), byte, [](const std::byte* b, const std::vector<CopyTask>& tasks) {
        return std::less<>()(b, static_cast<const std::byte*>(tasks.front().dst));
      });
  return after == all.begin() ? nullptr : &*std::prev(after);
}

}  // namespace

Result<BandCopies> BandCopies::make(const std::vector<CopyTask>& tasks, TileConsumer& taker,
                                    int threads) {
  BandCopies out;
  out.taker_ = &taker;
  const auto tensors = by_tensor(tasks);
  Index wanted = 0, found = 0;
  std::size_t most = 0;
  for (const CopyTask& task : tasks) wanted += task.copy.bytes();
  for (std::size_t b = 0; b < taker.size(); ++b) {
    out.add_band(tensors, b);
    found += out.bands_.back().bytes;
    most = std::max(most, out.bands_.back().end - out.bands_.back().first);
  }
  // More where bands share columns of the same rows.
  if (found < wanted)
    return fail(Code::invalid_argument, "bands have " + std::to_string(found) + " of the " +
                                            std::to_string(wanted) + " bytes that are delivered");
  out.bytes_ = found;
  out.placed_.resize(static_cast<std::size_t>(threads), std::vector<CopyTask>(most));
  out.stride_ = (taker.scratch_bytes() + kLine - 1) / kLine * kLine;
  out.scratch_ = RESHARD_TRY(HostBuffer::allocate(out.stride_ * threads, {.prefault_threads = 1}));
  return out;
}

void BandCopies::add_band(const std::vector<std::vector<CopyTask>>& tensors, std::size_t b) {
  std::vector<StridedCopy> parts;
  Band band{tasks_.size(), 0, 0, false};
  Index size = 0;
  for (const BandRange& range : taker_->ranges(b)) {
    size += range.bytes;
    const auto* const tasks = tensor_at(tensors, range.begin);
    if (tasks == nullptr) continue;
    const Index begin = range.begin - tasks->front().dst;
    for (const CopyTask& task : *tasks) {
      parts.clear();
      clip_destination(task.copy, begin, begin + range.bytes, parts);
      for (StridedCopy& part : parts) {
        part.dst_offset += range.at - begin;
        band.bytes += part.bytes();
        tasks_.push_back({part, task.src, nullptr, task.conversion});
      }
    }
  }
  band.end = tasks_.size();
  band.whole = band.bytes == size;
  bands_.push_back(band);
}

void BandCopies::bring(const Band& band, std::span<const BandRange> ranges, int worker) {
  std::byte* const scratch = scratch_.data() + stride_ * worker;
  if (!band.whole)
    for (const BandRange& range : ranges)
      std::memset(scratch + range.at, 0, static_cast<std::size_t>(range.bytes));
  auto& placed = placed_[static_cast<std::size_t>(worker)];
  const std::size_t n = band.end - band.first;
  for (std::size_t i = 0; i < n; ++i) {
    placed[i] = tasks_[band.first + i];
    placed[i].dst = scratch;
  }
  run_copies({placed.data(), n}, CopyHint::cached);
}

bool BandCopies::sweep(int s, WorkerPool& pool, ProgressMeter& meter) {
  const bool last = s + 1 == taker_->sweeps();
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  auto body = [&](int worker) {
    for (std::size_t b = next++; b < bands_.size() && !stopped; b = next++) {
      bring(bands_[b], taker_->ranges(b), worker);
      taker_->take(s, b, scratch_.data() + stride_ * worker);
      if (!meter.add(worker, last ? bands_[b].bytes : 0)) stopped = true;
    }
    copy_fence();
  };
  pool.run(body);
  return !stopped;
}

void BandCopies::run(WorkerPool& pool, ProgressMeter& meter) {
  for (int s = 0; s < taker_->sweeps(); ++s) {
    if (!sweep(s, pool, meter)) return;
    taker_->end_sweep(s);
  }
}

}  // namespace reshard
