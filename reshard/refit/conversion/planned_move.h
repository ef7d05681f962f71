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
#include "reshard/refit/conversion/tile_pass.h"
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

  /// Collective. `from` and each copy of `into` are this rank's memory, null if it has none, and
  /// must outlive the move. Errors: as RankRefit::prepare().
  Result<> prepare(const JobGroup& group, const RankBuffers* from,
                   std::vector<const RankBuffers*> into);
  /// Collective. The same if tiles are converted during the copy: `tiles` consumes them, and
  /// `names` has the addresses that its ranges use. Errors: also `unsupported`, identical on all
  /// ranks, if a rank cannot map its peers' memory; the group stays usable.
  Result<> prepare_tiles(const JobGroup& group, const RankBuffers* from, const RankBuffers& names,
                         TilePass& tiles);

  /// Collective. Adds to the report. An error has aborted the group.
  Result<> run(int copy, SessionReport& report);

  /// Collective, before check(). If tiles are converted during the copy, gathers them again to
  /// compare the copy with what they convert to; otherwise does nothing. An error has aborted the
  /// group.
  Result<> gather_again(const JobGroup& group, int copy);
  /// Collective. Verifies that the copy has the fingerprints of the memory it came from. For tiles:
  /// that the tiles of gather_again() have them, and that the copy is what they convert to. Errors:
  /// `corrupt`, identical on all ranks, leaves the group usable; any other error has aborted it.
  Result<> check(const JobGroup& group, int copy);
  /// Collective. Verifies the copy as it is now: against the last successful check() if `recorded`,
  /// otherwise against the memory it came from, as it is now.
  Result<> check_again(const JobGroup& group, int copy, bool recorded);

  const Planner& planner() const { return *planner_; }
  const RankRefit& refit() const { return refits_.front(); }
  Index staging_bytes() const;

 private:
  Result<> prepare_verifiers(const JobGroup& group);
  Result<> check_tiles(const JobGroup& group);
  Result<const ModelFingerprints*> read(const JobGroup& group, FingerprintVerifier& verifier);
  Result<> compare(const ModelFingerprints& from, const ModelFingerprints& to) const;
  std::size_t index(int copy) const {
    return into_.size() > 1 ? static_cast<std::size_t>(copy) : 0;
  }

  std::unique_ptr<Planner> planner_;
  const RankBuffers* from_ = nullptr;
  std::vector<const RankBuffers*> into_;
  TilePass* tiles_ = nullptr;
  std::vector<RankRefit> refits_;
  std::optional<FingerprintVerifier> from_verifier_;
  std::vector<FingerprintVerifier> into_verifiers_;
  ModelFingerprints recorded_;
};

}  // namespace reshard::conversion
