// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/refit/session_report.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// A refit that runs in a thread of its own, from Session::refit_async(). Copies are of the same
/// refit, and may outlive the session, which waits for its end. Any thread may call.
class PendingRefit {
 public:
  /// True once no rank reads this rank's sources, so that they may be written: at once if the
  /// session takes snapshots, otherwise when all ranks have their bytes, and have verified them if
  /// refits verify. Also true once the refit has failed.
  bool sources_free() const;
  /// Waits for that. False if the deadline came first.
  bool wait_sources_free(Deadline deadline) const;
  /// True once the refit has ended and all that it calls has returned.
  bool done() const;
  /// Waits for that. False if the deadline came first.
  bool wait(Deadline deadline) const;
  /// Waits for the end. Returns and fails as Session::refit().
  Result<SessionReport> result() const;

 private:
  friend class Session;
  struct Run;
  using FreeSources = std::function<void()>;
  using Work = std::function<Result<SessionReport>(const FreeSources&)>;

  /// Runs `work`, which calls its argument when sources are free, then `on_end`, in a new thread.
  /// Errors: `io` if the system gives no thread.
  static Result<PendingRefit> start(Work work, bool sources_free, std::function<void()> on_end);
  explicit PendingRefit(std::shared_ptr<Run> run) : run_(std::move(run)) {}

  std::shared_ptr<Run> run_;
};

}  // namespace reshard
