// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/refit_options.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/deadline.h"

namespace reshard {

struct InProcessOptions {
  int threads = 0;  ///< 0: one per core.
  Deadline deadline = Deadline::never();
  Progress progress;
};

/// A refit between ranks whose memory is all in this process: direct strided copies, no staging, no
/// messages.
///
/// Prepared once, run every step: run() plans nothing and allocates nothing.
class InProcessRefit {
 public:
  /// Resolves the deliveries to all destination ranks to addresses. The memory behind the buffers
  /// must not move while this object lives. Errors: the buffers lack a source or destination tensor
  /// of the plan (named); those of check_memory().
  static Result<InProcessRefit> prepare(const Planner& planner, const RankBuffers& source,
                                        const RankBuffers& target, InProcessOptions options = {});
  InProcessRefit(InProcessRefit&&) noexcept;
  InProcessRefit& operator=(InProcessRefit&&) noexcept;
  ~InProcessRefit();

  /// Moves all bytes. Errors: `deadline`; cancelled by `progress`. The destination is then
  /// undefined.
  Result<RefitReport> run();

 private:
  struct State;
  explicit InProcessRefit(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
