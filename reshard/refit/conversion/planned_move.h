// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/exec/verify/fingerprint_verifier.h"
#include "reshard/plan/planner.h"
#include "reshard/refit/conversion/conversion_check.h"
#include "reshard/refit/session_report.h"

namespace reshard::conversion {

/// The group that a job runs in, and its options.
struct JobGroup {
  Transport& transport;
  ControlPlane& control;
  RankRefitOptions options;
  RankRefitHooks hooks;
  Rank me() const { return transport.rank(); }
  Deadline deadline() const {
    return Deadline::after(std::chrono::duration<double>(options.seconds));
  }
};

/// True if the error is the result of a verification, which is identical on all ranks and leaves
/// the group usable.
inline bool is_verdict(const ControlPlane& control, const Error& error) {
  return error.code == Code::corrupt && control.status().has_value();
}

/// Collective. `wrong`: a local tensor of this rank that differs from what its source converts to,
/// or "". Errors: `corrupt`, identical on all ranks, if any rank has one (named).
Result<> agree_on_converted(const JobGroup& group, const std::string& wrong);

/// One plan over some tensors, and the refits that run it into one memory or into either of two
/// copies.
class PlannedMove {
 public:
  /// Makes what depends on the layouts alone. Errors: the planner's, identical on all ranks.
  static Result<PlannedMove> plan(std::shared_ptr<const ModelLayout> from,
                                  std::shared_ptr<const ModelLayout> to,
                                  const PlanOptions& options);

  /// This rank's memory, and how it becomes the plan's local tensors. All borrowed; null: none.
  struct Memory {
    const RankBuffers* from = nullptr;
    std::vector<const RankBuffers*> into;  ///< by copy.
    RefitConversions conversions = {};
    /// If a side is converted: addresses of the plan's local tensors, without memory behind them
    /// (AddressRange), and what verifies the conversion.
    const RankBuffers *from_names = nullptr, *into_names = nullptr;
    SourceCheck* from_check = nullptr;
    TargetCheck* into_check = nullptr;
  };
  /// Collective. The memory must outlive the move. Errors: as RankRefit::prepare().
  Result<> prepare(const JobGroup& group, Memory memory);

  /// Collective. Adds to the report. An error has aborted the group.
  Result<> run(int copy, SessionReport& report);

  /// Collective. Verifies that the copy has the fingerprints of the memory it came from. What is
  /// converted on the way is gathered again: it must have the fingerprints of the source, and the
  /// copy must be what it converts to. Errors: `corrupt`, identical on all ranks, leaves the group
  /// usable; any other error has aborted it.
  Result<> check(const JobGroup& group, int copy);
  /// Collective. Verifies the copy as it is now: against the last successful check() if `recorded`,
  /// otherwise against the memory it came from, as it is now.
  Result<> check_again(const JobGroup& group, int copy, bool recorded);

  const Planner& planner() const { return *planner_; }
  const RankRefit& refit() const { return refits_.front(); }
  Index staging_bytes() const;

 private:
  bool consumes() const { return memory_->conversions.after.layout != nullptr; }
  bool produces() const { return memory_->conversions.before.layout != nullptr; }
  Result<> prepare_verifiers(const JobGroup& group);
  Result<const ModelFingerprints*> read_source(const JobGroup& group);
  Result<const ModelFingerprints*> read_target(const JobGroup& group, int copy);
  Result<> compare(const ModelFingerprints& from, const ModelFingerprints& to) const;
  std::size_t index(int copy) const {
    return memory_->into.size() > 1 ? static_cast<std::size_t>(copy) : 0;
  }

  std::unique_ptr<Planner> planner_;
  std::unique_ptr<Memory> memory_;
  std::vector<RankRefit> refits_;
  std::optional<FingerprintVerifier> from_verifier_;
  std::vector<FingerprintVerifier> into_verifiers_;
  ModelFingerprints recorded_;
};

}  // namespace reshard::conversion
