// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/refit/session_side.h"

namespace reshard::session {

/// A target of a job: one of a session's, or several that one plan serves, as one side.
class JobTarget {
 public:
  /// A target alone.
  explicit JobTarget(SessionSide side) : side_(std::move(side)) {}
  /// Joined targets, on rank `me`. `layout`: join_layouts() of theirs. Errors: those of
  /// RankBuffers.
  static Result<JobTarget> join(std::shared_ptr<const ModelLayout> layout,
                                std::span<const SessionSide> parts, Rank me);

  const SessionSide& side() const { return side_; }
  /// Takes the stream that the memory of this rank's part has now. Before each refit.
  void renew_stream();

 private:
  /// The memory of a joined layout, over that of a part. Null: none.
  struct View {
    const RankBuffers* of = nullptr;
    std::unique_ptr<RankBuffers> joined = nullptr;
  };
  static Result<View> view(const std::shared_ptr<const ModelLayout>& layout,
                           const RankBuffers* part, Rank me);

  SessionSide side_;
  View buffers_, back_;
};

/// Joins the plain targets that one plan can serve: their ranks then receive at the same time, and
/// relay to each other. All others are jobs of their own. Which are joined depends on layouts
/// alone. Errors: those of RankBuffers.
Result<std::vector<JobTarget>> job_targets(std::span<const SessionSide> targets, Rank me);

}  // namespace reshard::session
