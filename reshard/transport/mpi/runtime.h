// SPDX-License-Identifier: Apache-2.0
// This process's MPI library: started once, shared by all groups, ended with the process. Compiled
// once for each MPI library.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::mpi {

/// "Open MPI 4.1.4", "MPICH 4.0.2". Callable before MPI_Init, which it does not call.
std::string library_version();

/// Starts MPI unless the program has, and then ends it when the process exits, unless the last
/// group ended badly. Errors: `unsupported` when MPI was ended already, or the
/// program started it with a thread level that forbids this thread to call it.
Result<> initialize();

/// How a group ended here. After one that ended badly the process leaves without MPI_Finalize(),
/// which waits for every process of the launcher, also for the dead; unless a later group of all of
/// them ended well.
void group_ended(bool well, bool whole_world);

/// Success, or `aborted` with MPI's own words: "mpi: MPI_Isend to rank 3: ...".
Result<> to_result(int code, std::string_view what);

/// As TransportModule::broadcast: collective among all processes of MPI_COMM_WORLD. At most 64 KiB.
Result<std::vector<std::byte>> broadcast(std::span<const std::byte> mine);

/// A frame that the library has not let go of when its group ends: kept until MPI has sent it, or
/// for ever.
void keep_until_sent(MPI_Request request, std::vector<std::byte> frame);

}  // namespace reshard::mpi
