// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/transport/control.h"
#include "reshard/transport/group.h"
#include "reshard/transport/messages/wire.h"

namespace reshard::mpi {

/// Collective among the ranks of `control`, which are distinct processes of one mpirun or srun, in
/// any order and not necessarily all of them. Starts MPI unless the program has; processes of the
/// launcher outside the group must start it, too, or MPI waits for them. Errors: `unsupported`
/// without a launcher, with several launchers or libraries, or with two ranks in one process;
/// `aborted` with the message of MPI. `control` must outlive the wire.
Result<std::unique_ptr<messages::Wire>> make_wire(ControlPlane& control,
                                                  const TransportOptions& options);

}  // namespace reshard::mpi
