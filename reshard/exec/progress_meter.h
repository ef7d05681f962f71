// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>

#include "reshard/base/result.h"
#include "reshard/exec/progress.h"
#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// Counts the bytes of one operation over its workers, reports them from worker 0 at most 20 times
/// a second, and says when to stop: the callback cancelled, the deadline passed, the group was
/// aborted, or a worker failed (the first error is kept).
class ProgressMeter {
 public:
  /// `control`, if not null, gets a report() of the bytes delivered to this rank, and is asked
  /// whether the group is still alive.
  ProgressMeter(const char* phase, Index total, const Progress& progress,
                Deadline deadline = Deadline::never(), ControlPlane* control = nullptr)
      : phase_(phase), total_(total), progress_(progress), deadline_(deadline), control_(control) {}

  /// Called by a worker after each unit of work. Returns false if all workers should stop.
  bool add(int worker, Index bytes) { return add(worker, bytes, bytes); }
  /// The same if only `delivered` of the bytes are delivered to this rank; the others are sent.
  bool add(int worker, Index bytes, Index delivered) {
    const Index done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    delivered_.fetch_add(delivered, std::memory_order_relaxed);
    if (worker == 0) check(done);
    return !stop_.load(std::memory_order_relaxed);
  }

  /// Keeps the first error and stops all workers.
  void fail_with(Error error) {
    bool expected = false;
    if (claimed_.compare_exchange_strong(expected, true)) error_ = std::move(error);
    stop_ = true;
  }

  /// True once a worker failed or the operation was cancelled.
  bool stopped() const { return stop_; }

  /// Called after all workers have returned. Returns the first error; or makes the final report.
  Result<> finish() {
    if (claimed_) return tl::unexpected(error_);
    report_to_group();
    if (progress_) progress_(phase_, total_, total_);
    return {};
  }

 private:
  using Clock = std::chrono::steady_clock;
  void check(Index done) {
    if (!progress_ && deadline_.is_never() && control_ == nullptr) return;
    const auto now = Clock::now();
    if (!deadline_.is_never() && now >= deadline_.time())
      fail_with({Code::deadline, std::string(phase_) + ": the deadline passed after " +
                                     std::to_string(done) + " of " + std::to_string(total_) +
                                     " bytes"});
    if (control_ != nullptr)
      if (auto status = control_->status(); !status) fail_with(std::move(status).error());
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(50);
    report_to_group();
    if (progress_ && !progress_(phase_, done, total_))
      fail_with({Code::aborted, std::string(phase_) + ": cancelled"});
  }

  void report_to_group() {
    if (control_ == nullptr) return;
    const Index delivered = delivered_.load(std::memory_order_relaxed);
    if (delivered > reported_) control_->report(delivered - reported_);
    reported_ = delivered;
  }

  const char* phase_;
  Index total_;
  const Progress& progress_;
  Deadline deadline_;
  ControlPlane* control_;
  Index reported_ = 0;
  Clock::time_point next_{};
  std::atomic<Index> done_{0}, delivered_{0};
  std::atomic<bool> stop_{false}, claimed_{false};
  Error error_;
};

}  // namespace reshard
