// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include <mpi.h>

#include "reshard/transport/mpi/runtime.h"
#include "reshard/transport/mpi/wire.h"

namespace reshard::mpi {
namespace {

std::string reason() {
  int ended = 0;
  MPI_Finalized(&ended);
  return ended != 0 ? "this process has already finalized MPI" : "";
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
                                               .host_memory = true};
  return &module;
}
