// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/commands.h"
#include "cli/run/processes/spawned.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// Where this process stands in a run over processes.
struct Place {
  RendezvousOptions join;  ///< its rank, the group's size, and where the group meets.
  Rank first;              ///< the lowest rank of this program's processes, which speaks for them.
  int program = 1;         ///< processes of this program.
  std::optional<Spawned> spawned;
};

/// Decides it from the arguments, who started this process, and the plan. With MPI and without
/// --rendezvous the processes are told by MPI where to meet, so this is collective then. Errors:
/// too few processes, ranks that the plan does not have or that are not of the role, no rendezvous.
Result<Place> find_rank_place(const RunArguments& arguments, const Planner& planner,
                              std::optional<Spawned> spawned);

/// The ranks of this program's processes: --ranks, or all. Errors: not of the plan, not of the
/// role.
Result<RunArguments::Ranks> ranks_of_program(const RunArguments& arguments, const Planner& planner);

/// Ranks of the group that the plan needs: 0 to the last rank of either layout.
int world_of(const Planner& planner);

/// False for the second and later processes of one launch, which are silent about what all of them
/// find alike.
bool is_first_of_launch();

}  // namespace reshard::cli
