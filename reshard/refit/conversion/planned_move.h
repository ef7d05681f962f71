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
#include "reshard/refit/conversion/band_pass.h"
#include "reshard/refit/session_report.h"

namespace reshard {

/// The group that a job runs in, and how.
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

/// Collective. `wrong`: the local tensor of this rank that is not what it should have been
/// converted to, or "". Errors: `corrupt` where a rank has one (named), alike on all ranks.
Result<> agree_on_converted(const JobGroup& group, const std::string& wrong);

/// One plan over some tensors, and how it runs into one memory or either of two. One of several
/// that a job does in turn.
class PlannedMove {
 public:
  /// What of it depends on the layouts alone. `only`: as PlanOptions. Errors: those of the planner,
  /// alike on all ranks.
  static Result<PlannedMove> plan(std::shared_ptr<const ModelLayout> from,
                                  std::shared_ptr<const ModelLayout> to,
                                  const PlanOptions& options);

  /// Collective. Memory of this rank, null where it has none, `into` of as many copies as given.
  /// The buffers must outlive the move. Errors: as RankRefit::prepare().
  Result<> prepare(const JobGroup& group, const RankBuffers* from,
                   std::vector<const RankBuffers*> into);
  /// Collective. The same where what is moved is converted on the way: `names` is what its values
  /// would land in, `bands` what takes them instead. Errors: also `unsupported`, alike on all
  /// ranks, where some rank cannot read its peers' memory in place; the group can be used then.
  Result<> prepare_bands(const JobGroup& group, const RankBuffers* from, const RankBuffers& names,
                         BandPass& bands);

  /// Collective. Adds to the report. After an error the group is finished.
  Result<> run(int copy, SessionReport& report);

  /// Collective, before check(): brings what is converted on the way once more, to compare the copy
  /// with what it converts to. Does nothing where nothing is. After an error the group is finished.
  Result<> bring_again(const JobGroup& group, int copy);
  /// Collective. Fingerprints of what was moved into the copy are those of where it came from; of
  /// what was converted on the way those of what bring_again() brought are, and the copy is what it
  /// converts to. Errors: `corrupt`, alike on all ranks, which can go on; others, after which the
  /// group is aborted.
  Result<> check(const JobGroup& group, int copy);
  /// Collective. The same, of the copy as it is now, towards the last check() that was good where
  /// `recorded`, else towards where it came from, as it is now.
  Result<> check_again(const JobGroup& group, int copy, bool recorded);

  const Planner& planner() const { return *planner_; }
  const RankRefit& refit() const { return refits_.front(); }
  Index staging_bytes() const;

 private:
  Result<> prepare_proofs(const JobGroup& group);
  Result<> check_bands(const JobGroup& group);
  Result<const ModelFingerprints*> read(const JobGroup& group, FingerprintVerifier& proof);
  Result<> compare(const ModelFingerprints& from, const ModelFingerprints& to) const;
  std::size_t index(int copy) const {
    return into_.size() > 1 ? static_cast<std::size_t>(copy) : 0;
  }

  std::unique_ptr<Planner> planner_;
  const RankBuffers* from_ = nullptr;
  std::vector<const RankBuffers*> into_;
  BandPass* bands_ = nullptr;
  std::vector<RankRefit> refits_;
  std::optional<FingerprintVerifier> from_proof_;
  std::vector<FingerprintVerifier> into_proofs_;
  ModelFingerprints recorded_;
};

}  // namespace reshard
