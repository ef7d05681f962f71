// SPDX-License-Identifier: Apache-2.0
// The MPI library of this process: started once, shared by all groups, finalized when the process
// exits. Compiled once for each MPI library.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::mpi {

/// "Open MPI 4.1.4", "MPICH 4.0.2". Works before MPI_Init, which it does not call.
std::string library_version();

/// Why messages cannot be in CUDA memory with this library, or "". @pre MPI has started: some
/// libraries end the process otherwise
std::string host_memory_reason();

/// Starts MPI unless the program has. If so, finalizes it when the process exits, unless the last
/// group failed. Errors: `unsupported` if MPI was finalized, or the program started it with a
/// thread level that does not permit calls from this thread.
Result<> initialize();

/// Records how a group ended. After a failure the process exits without MPI_Finalize(), which would
/// wait for all processes of the launcher, even dead ones, unless a later group of all processes
/// ended well.
void group_ended(bool well, bool whole_world);

/// Success, or `aborted` with the message of MPI: "mpi: MPI_Isend to rank 3: ...".
Result<> to_result(int code, std::string_view what);

/// As TransportModule::broadcast: collective among all processes of MPI_COMM_WORLD. At most 64 KiB.
Result<std::vector<std::byte>> broadcast(std::span<const std::byte> mine);

/// Keeps the memory of a frame that is still being sent when its group ends, until MPI has sent it.
void keep_until_sent(MPI_Request request, std::vector<std::byte> frame);

}  // namespace reshard::mpi
