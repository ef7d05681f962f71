// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reshard/convert/reference/reference_sides.h"
#include "reshard/exec/progress.h"
#include "reshard/exec/verify/fingerprint_verifier.h"
#include "reshard/plan/planner.h"

namespace reshard {

/// Proves a refit: sources and destinations of every tensor that both sides hold have the same
/// fingerprint, replicas agree, and where the sources were filled from the oracle of a seed every
/// destination element is compared with it. Errors name the first tensor that is wrong.
Result<> check_refit(const RankBuffers& source, const RankBuffers& target,
                     std::optional<std::uint64_t> oracle_seed, int threads,
                     const Progress& progress);

/// The same where every rank has only its own memory: `source` and `target` are null or hold this
/// rank alone. Collective; empty, or what is wrong, the same text on every rank. Errors end the
/// group: a rank could not take part.
Result<std::string> check_rank_refit(const Planner& planner, const RankBuffers* source,
                                     const RankBuffers* target,
                                     std::optional<std::uint64_t> oracle_seed, Transport& transport,
                                     ControlPlane& control, const FingerprintOptions& options);

/// Proves a refit that quantises: compares every byte of the target's ranks in `target` with what
/// quantising (or dequantising) the source's values gives. Errors: `corrupt` names tensor and
/// element; those of making the values; cancelled.
Result<> check_quantised_refit(const ReferenceJob& job, const RankBuffers& target, int threads,
                               const Progress& progress);

/// Collective. What was wrong on the lowest rank where anything was, or empty. Errors: other ones
/// than `corrupt`, at once; the group's.
Result<std::string> agree_on_verdict(Result<> mine, ControlPlane& control, Deadline deadline);

}  // namespace reshard
