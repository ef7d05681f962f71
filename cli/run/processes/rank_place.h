// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/commands.h"
#include "cli/run/processes/spawned.h"
#include "reshard/base/file.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/rendezvous.h"

namespace reshard::cli {

/// This process's rank and group in a run over processes.
struct RankPlace {
  RendezvousOptions join;   ///< its rank, the group's size, and the rendezvous.
  FileDescriptor listener;  ///< that of `join`, if this process made one.
  Rank first;               ///< the lowest rank of this program's processes, which prints for them.
  int program = 1;          ///< processes of this program.
  std::optional<Spawned> spawned;
};

/// Derives it from the arguments, the launcher and the plan. Under MPI without --rendezvous this is
/// collective, as MPI broadcasts the rendezvous. Errors: too few processes; ranks that the plan
/// lacks or that are not of the role; no rendezvous.
Result<RankPlace> find_rank_place(const RunArguments& arguments, const Planner& planner,
                                  std::optional<Spawned> spawned);

/// The ranks of this program's processes: --ranks, or all. Errors: not of the plan, not of the
/// role.
Result<RunArguments::Ranks> ranks_of_program(const RunArguments& arguments, const Planner& planner);

/// Ranks of the group that the plan needs: 0 to the last rank of either layout.
int world_of(const Planner& planner);

/// False for all but the first process of one launch, which do not repeat errors that all of them
/// find.
bool is_first_of_launch();

}  // namespace reshard::cli
