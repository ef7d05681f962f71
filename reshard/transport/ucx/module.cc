// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include "reshard/transport/ucx/library.h"
#include "reshard/transport/ucx/wire.h"

namespace reshard::ucx {
namespace {

std::string reason() {
  const auto worker = Worker::make_on_host();
  return worker ? "" : worker.error().message;
}

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const TransportOptions& options) {
  return messages::make_transport(RESHARD_TRY(UcxWire::make(control, options)), control);
}

}  // namespace
}  // namespace reshard::ucx

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "ucx",
                                               .version = reshard::ucx::library_version,
                                               .reason = reshard::ucx::reason,
                                               .make = reshard::ucx::make,
                                               .host_memory = true};
  return &module;
}
