// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/transport/rendezvous.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// Both ends of one rank. The transport goes first.
struct ProcessGroup {
  std::unique_ptr<ControlPlane> control;
  std::unique_ptr<Transport> transport;
};

/// What a transport may want to know beyond the group.
struct TransportOptions {
  /// Network interface or address to use, for those that use a network; empty: the one that reaches
  /// the rendezvous.
  std::string interface;
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
};

/// Collective. Makes the data plane named `name` ("shm", "mpi", "gloo", "ucx", "nccl") among the
/// ranks of a control plane, which must outlive it. Loads the backend's module when it has one.
/// Errors: `unsupported` with the reason that `reshard transports` gives; `inproc` is made by
/// InprocGroup; what the backend says.
Result<std::unique_ptr<Transport>> make_transport(std::string_view name, ControlPlane& control,
                                                  const TransportOptions& options = {});

/// join() and make_transport().
Result<ProcessGroup> join_group(std::string_view transport, const RendezvousOptions& join,
                                const TransportOptions& options = {});

/// This process's place among those that one launcher started.
struct Launched {
  int rank = 0, size = 1;
  std::string launcher;  ///< "Open MPI", "MPICH", "Slurm", "torchrun".
};

/// What the launcher wrote into the environment, if there is one (mpirun of Open MPI and MPICH,
/// srun, torchrun). Errors: half of it, or not numbers.
Result<std::optional<Launched>> launched();

}  // namespace reshard
