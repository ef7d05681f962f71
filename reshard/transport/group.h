// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/transport/rendezvous.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// The control plane and the transport of one rank. The transport is destroyed first.
struct ProcessGroup {
  std::unique_ptr<ControlPlane> control;
  std::unique_ptr<Transport> transport;
};

/// Options for make_transport().
struct TransportOptions {
  /// The network interface or address to use, for transports that use a network; if empty, the one
  /// that reaches the rendezvous.
  std::string interface;
  /// The GPU whose memory messages may be in, as CUDA counts those that this process sees. -1:
  /// none, and a transport of GPU memory then fails. Other transports take such messages if their
  /// library can (Capabilities::gpu_messages); if it cannot, they work as without a GPU.
  int gpu = -1;
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
};

/// Collective. Makes the data plane `name` ("shm", "mpi", "gloo", "ucx", "nccl", "nvshmem") between
/// the ranks of a control plane, which must outlive it. Loads the module of the backend if it has
/// one. Errors: `unsupported` with the reason that `reshard transports` prints, and for "inproc",
/// which InprocGroup makes; those of the backend.
Result<std::unique_ptr<Transport>> make_transport(std::string_view name, ControlPlane& control,
                                                  const TransportOptions& options = {});

/// join(), then make_transport().
Result<ProcessGroup> join_group(std::string_view transport, const RendezvousOptions& join,
                                const TransportOptions& options = {});

/// The position of this process among those of one launcher.
struct Launched {
  int rank = 0, size = 1;
  std::string launcher;  ///< "Open MPI", "MPICH", "Slurm", "torchrun".
};

/// Reads the environment variables of the launcher (mpirun of Open MPI or MPICH, srun, torchrun),
/// if there is one. Errors: `invalid_argument` if a variable is missing or not a number.
Result<std::optional<Launched>> launched();

}  // namespace reshard
