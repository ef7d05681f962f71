// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/refit_report.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/deadline.h"

namespace reshard {

struct InProcessOptions {
  int threads = 0;  ///< 0: one per core.
  Deadline deadline = Deadline::never();
  Progress progress;
};

/// A refit between ranks whose memory this process reaches: direct strided copies, no staging, no
/// messages.
///
/// Prepared once, run every step: run() plans nothing and allocates nothing.
class InProcessRefit {
 public:
  /// Resolves the deliveries of all destination ranks to addresses. The buffers must stay where
  /// they are while this object lives. Errors: a source or destination tensor of the plan that is
  /// not in the buffers (named).
  static Result<InProcessRefit> prepare(const Planner& planner, const RankBuffers& source,
                                        const RankBuffers& target, InProcessOptions options = {});
  InProcessRefit(InProcessRefit&&) noexcept;
  InProcessRefit& operator=(InProcessRefit&&) noexcept;
  ~InProcessRefit();

  /// Moves all bytes. Errors: the deadline passed or progress cancelled; the destination is then
  /// undefined.
  Result<RefitReport> run();

 private:
  struct State;
  explicit InProcessRefit(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
