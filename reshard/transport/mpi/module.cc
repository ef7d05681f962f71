// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include <mpi.h>

#include "reshard/transport/gpu_pointer_query.h"
#include "reshard/transport/mpi/runtime.h"
#include "reshard/transport/mpi/wire.h"

namespace reshard::mpi {
namespace {

std::string reason() {
  int ended = 0;
  MPI_Finalized(&ended);
  return ended != 0 ? "this process has already finalized MPI" : "";
}

std::string gpu_reason() {
  if (std::string why = GpuPointerQuery::unavailable_reason(); !why.empty()) return why;
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started == 0 || ended != 0) return library_version() + " is asked only once MPI has started";
  return host_memory_reason();
}

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const TransportOptions& options) {
  return messages::make_transport(RESHARD_TRY(make_wire(control, options)), control);
}

}  // namespace
}  // namespace reshard::mpi

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "mpi",
                                               .version = reshard::mpi::library_version,
                                               .reason = reshard::mpi::reason,
                                               .make = reshard::mpi::make,
                                               .broadcast = reshard::mpi::broadcast,
                                               .host_memory = true,
                                               .gpu_reason = reshard::mpi::gpu_reason};
  return &module;
}
