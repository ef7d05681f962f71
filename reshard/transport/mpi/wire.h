// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/transport/control.h"
#include "reshard/transport/group.h"
#include "reshard/transport/messages/wire.h"

namespace reshard::mpi {

/// Collective among the ranks of `control`, each of which is a process that one mpirun or srun
/// started, in any order and not necessarily all of them. Starts MPI where the program has not; the
/// processes of the launcher that are not in the group must start it too, or MPI waits for them.
/// Errors: `unsupported`: not started by a launcher, processes of several launchers or libraries,
/// two ranks in one process; `aborted` with MPI's words. `control` must outlive the wire.
Result<std::unique_ptr<messages::Wire>> make_wire(ControlPlane& control,
                                                  const TransportOptions& options);

}  // namespace reshard::mpi
