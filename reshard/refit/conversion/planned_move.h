// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/exec/agreement.h"
#include "reshard/exec/rank_refit_hooks.h"
#include "reshard/exec/verify/fingerprint_verifier.h"
#include "reshard/refit/conversion/conversion_check.h"
#include "reshard/refit/conversion/plan_route.h"

namespace reshard::conversion {

/// The group that a job runs in, and its options.
struct JobGroup {
  Transport& transport;
  ControlPlane& control;
  RankRefitOptions options;
  RankRefitHooks hooks;
  Index unit_bytes = 0;  ///< of values that are converted at once, about; equal on all ranks.
  Rank me() const { return transport.rank(); }
  Deadline deadline() const {
    return Deadline::after(std::chrono::duration<double>(options.seconds));
  }
};

/// This rank's memory of a session's sides; null: none.
struct JobMemory {
  /// One memory in two forms: all of it as stored, and its plain tensors as a layout of values.
  struct Forms {
    const RankBuffers *stored = nullptr, *values = nullptr;
    const RankBuffers* in_form(const MoveSide& side) const { return side.values ? values : stored; }
  };
  Forms source;
  std::vector<Forms> target;  ///< by copy.
};

/// True if the error is the result of a verification, which is identical on all ranks and leaves
/// the group usable.
inline bool is_verdict(const ControlPlane& control, const Error& error) {
  return error.code == Code::corrupt && control.status().has_value();
}

/// Ends the group, unless the error is a verdict.
template <class T>
Result<T> or_end(const JobGroup& group, Result<T> done) {
  if (done || is_verdict(group.control, done.error())) return done;
  return end_group(group.control, std::move(done).error());
}

/// A plan over the tensors of a route on one rank: the refits that run it into each copy of the
/// target, and their verification.
class PlannedMove {
 public:
  explicit PlannedMove(RoutePlan plan) : plan_(std::move(plan)) {}

  /// Not collective. Finds this rank's memory, which must outlive the move. Errors: memory missing.
  Result<> place(const JobMemory& memory, const JobGroup& group);
  /// Collective. Errors: as RankRefit::prepare().
  Result<> prepare(const JobGroup& group);

  /// Collective. As RankRefit::renew_memory().
  Result<> renew_memory() {
    for (RankRefit& refit : refits_) RESHARD_TRY(refit.renew_memory());
    return {};
  }

  RankRefit& refit(int copy) { return refits_[index(copy)]; }
  const RankRefit& refit() const { return refits_.front(); }
  Index staging_bytes() const;
  const RoutePlan& plan() const { return plan_; }
  const Planner& planner() const { return plan_.planner; }
  /// True if bytes move from memory to memory, cast at most.
  bool is_direct() const { return plan_.route == Route::plain || plan_.route == Route::stored; }
  /// Tensors that this move writes and the next one reads; null if it writes the target. Their
  /// memory is the caller's: place() them before this move, clear() them before each run.
  StagingTensors* between() const { return plan_.into.between.get(); }

  /// Collective. Verifies that the copy has the fingerprints of the memory it came from. What is
  /// converted on the way is gathered again: it must have the fingerprints of the source, and the
  /// copy must be what it converts to. Errors: `corrupt`, identical on all ranks, leaves the group
  /// usable; any other error has aborted it.
  Result<> check(const JobGroup& group, int copy);
  /// Collective. Verifies that the copy is still what the last successful check() saw. Errors: as
  /// check(). @pre is_direct()
  Result<> check_recorded(const JobGroup& group, int copy);

 private:
  Result<> add_checks(const JobGroup& group);
  ConvertedPlan converted_plan(const MoveSide& side, bool is_target, const JobGroup& group) const;
  Result<> compare_all(const JobGroup& group, int copy);
  Result<> compare_recorded(const JobGroup& group, int copy);
  Result<> prepare_verifiers(const JobGroup& group);
  Result<const ModelFingerprints*> read_source(const JobGroup& group);
  Result<const ModelFingerprints*> read_target(const JobGroup& group, int copy);
  Result<> compare(const ModelFingerprints& from, const ModelFingerprints& to) const;
  std::size_t index(int copy) const {
    return into_.size() > 1 ? static_cast<std::size_t>(copy) : 0;
  }

  RoutePlan plan_;
  const RankBuffers* from_ = nullptr;
  std::vector<const RankBuffers*> into_;  ///< by copy.
  std::vector<RankRefit> refits_;
  std::unique_ptr<ConversionCheck> from_check_, into_check_;  ///< of sides that convert.
  std::shared_ptr<const Program> from_reader_;  ///< converts the source for its check, if any.
  HostBuffer reader_staging_;
  std::optional<FingerprintVerifier> from_verifier_;
  std::vector<FingerprintVerifier> into_verifiers_;
  ModelFingerprints recorded_;
};

}  // namespace reshard::conversion
