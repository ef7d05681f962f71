// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "reshard/convert/reference/reference_sides.h"
#include "reshard/exec/progress.h"
#include "reshard/exec/verify/fingerprint_verifier.h"
#include "reshard/plan/planner.h"

namespace reshard {

/// Verifies a refit: every tensor that moved has the same fingerprint on both sides, and replicas
/// agree. A tensor moves if both sides hold it and `only` (PlanOptions::only) is empty or names it.
/// With `oracle_seed`, from which the sources were filled, every destination element is compared
/// with the oracle too. Errors name the first tensor that is wrong.
Result<> check_refit(const RankBuffers& source, const RankBuffers& target,
                     std::optional<std::uint64_t> oracle_seed, int threads,
                     const Progress& progress, const std::set<std::string>& only = {});

/// The same if every rank has only its own memory: `source` and `target` are null or hold this rank
/// alone. Collective. Returns what is wrong, identical on all ranks, or empty. An error, which
/// aborts the group, means that a rank could not take part.
Result<std::string> check_rank_refit(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target,
                                     std::optional<std::uint64_t> oracle_seed, Transport& transport,
                                     ControlPlane& control, const FingerprintOptions& options,
                                     const std::set<std::string>& only = {});

/// Verifies a refit that quantises: compares every byte that it wrote to the ranks in `target` with
/// the source's values, quantised or dequantised without a session. Tensors that job.pair.only does
/// not name are left out. Errors: `corrupt` names tensor and element; those of computing the
/// values; cancelled. @pre job.pair.quantises()
Result<> check_quantised_refit(const ReferenceJob& job, const RankBuffers& target, int threads,
                               const Progress& progress);

/// Collective. The `corrupt` error of the lowest rank that has one, or empty. Errors: any other
/// error of this rank, at once; those of the group.
Result<std::string> agree_on_verdict(Result<> mine, ControlPlane& control, Deadline deadline);

}  // namespace reshard
