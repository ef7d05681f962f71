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
/// a second, and says when to stop: cancelled by the callback, past the deadline, the group
/// aborted, or an error of a worker (the first one is kept).
class ProgressMeter {
 public:
  /// `control`, when given, is told what is delivered here, and asked whether the group still
  /// lives.
  ProgressMeter(const char* phase, Index total, const Progress& progress,
                Deadline deadline = Deadline::never(), ControlPlane* control = nullptr)
      : phase_(phase), total_(total), progress_(progress), deadline_(deadline), control_(control) {}

  /// Called by a worker after each unit of work. Returns false when all workers should stop.
  bool add(int worker, Index bytes) { return add(worker, bytes, bytes); }
  /// The same where only a part of the work is what this rank delivers: the rest is sent.
  bool add(int worker, Index bytes, Index delivered) {
    const Index done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    delivered_.fetch_add(delivered, std::memory_order_relaxed);
    if (worker == 0) look(done);
    return !stop_.load(std::memory_order_relaxed);
  }

  /// Keeps the first error and stops all workers.
  void fail_with(Error error) {
    bool expected = false;
    if (claimed_.compare_exchange_strong(expected, true)) error_ = std::move(error);
    stop_ = true;
  }

  /// After all workers have returned: the first error, or success; then the final report.
  Result<> finish() {
    if (claimed_) return tl::unexpected(error_);
    tell_group();
    if (progress_) progress_(phase_, total_, total_);
    return {};
  }

 private:
  using Clock = std::chrono::steady_clock;
  void look(Index done) {
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
    tell_group();
    if (progress_ && !progress_(phase_, done, total_))
      fail_with({Code::aborted, std::string(phase_) + ": cancelled"});
  }

  void tell_group() {
    if (control_ == nullptr) return;
    const Index delivered = delivered_.load(std::memory_order_relaxed);
    if (delivered > told_) control_->report(delivered - told_);
    told_ = delivered;
  }

  const char* phase_;
  Index total_;
  const Progress& progress_;
  Deadline deadline_;
  ControlPlane* control_;
  Index told_ = 0;
  Clock::time_point next_{};
  std::atomic<Index> done_{0}, delivered_{0};
  std::atomic<bool> stop_{false}, claimed_{false};
  Error error_;
};

}  // namespace reshard
