// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "reshard/exec/rank_refit.h"

namespace reshard {

/// What all ranks must find alike before a refit.
struct Agreed {
  RankRefitOptions options;  ///< this rank's, with staging and in_place_bytes that fit all.
  bool direct = false;       ///< every rank's transport reaches peers' memory.
};

/// Collective. Compares the plan's digest and the path over all ranks. Errors, alike on all:
/// `invalid_argument` for differing plans (both digests named) or paths, for a plan with more ranks
/// than the group has, for too little staging; those of all_gather().
Result<Agreed> agree(const Planner& planner, const RankRefitOptions& options, bool direct,
                     ControlPlane& control, Deadline deadline);

/// What both paths cost a rank, in one unit.
struct PathCosts {
  std::uint64_t direct = 0, message = 0;
};
/// Collective. The most of all ranks, of each.
Result<PathCosts> agree_on_costs(const PathCosts& mine, ControlPlane& control, Deadline deadline);

/// Collective. Every rank gives "" or why it cannot; the first reason with its rank, or "".
Result<std::string> agree_on_reason(const std::string& mine, ControlPlane& control,
                                    Deadline deadline);

}  // namespace reshard
