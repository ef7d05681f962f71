// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include <mpi.h>

#include "reshard/transport/mpi/runtime.h"
#include "reshard/transport/mpi/wire.h"

namespace reshard {
namespace {

std::string reason() {
  int ended = 0;
  MPI_Finalized(&ended);
  return ended != 0 ? "this process has already ended its MPI" : "";
}

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const TransportOptions& options) {
  return make_message_engine(RESHARD_TRY(make_mpi_wire(control, options)), control);
}

}  // namespace
}  // namespace reshard

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "mpi",
                                               .version = reshard::mpi_version,
                                               .reason = reshard::reason,
                                               .make = reshard::make,
                                               .broadcast = reshard::mpi_broadcast,
                                               .host_memory = true};
  return &module;
}
