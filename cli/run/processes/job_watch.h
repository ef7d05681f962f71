// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/progress_bar.h"
#include "cli/run/processes/test_kill.h"
#include "reshard/transport/control.h"

namespace reshard::cli {

/// A background thread: aborts the group when this process is interrupted, records which ranks were
/// lost when the group ended, and on one process draws a bar of the whole job.
class JobWatch {
 public:
  /// `control` must outlive this.
  JobWatch(ControlPlane& control, bool draws, TestKill kill);
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  /// Begins a phase that moves `bytes` over all ranks, `times` times. `phase` is static text.
  void begin(std::string_view phase, Index bytes, Index times = 1);
  /// Erases the bar until the next phase.
  void wipe();
  /// The callback for an operation of this rank that does not report to the group itself: reports
  /// its bytes, and cancels it when the group has ended.
  Progress reporting();
  /// The same for an operation that does.
  Progress stopping();

  /// The error that ended the group, or success.
  Result<> end() const;
  /// Ranks that were gone when the end of the group was first seen here.
  std::vector<Rank> lost();

 private:
  /// False once the group has ended; an interrupt of this process ends it.
  bool goes_on();
  void look();
  void live(const std::stop_token& stop);

  ControlPlane& control_;
  TestKill kill_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::string_view phase_;
  Index bytes_ = 0, total_ = 0, before_ = 0;
  bool ended_ = false;
  std::vector<Rank> lost_;
  std::unique_ptr<ProgressBar> bar_;  ///< of the current phase; null on the other processes.
  bool draws_;
  std::jthread thread_;
};

}  // namespace reshard::cli
