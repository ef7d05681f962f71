// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include "reshard/transport/ucx/library.h"
#include "reshard/transport/ucx/wire.h"

namespace reshard {
namespace {

std::string reason() {
  const auto worker = ucx::Worker::make_on_host();
  return worker ? "" : worker.error().message;
}

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const TransportOptions& options) {
  return make_message_engine(RESHARD_TRY(ucx::UcxWire::make(control, options)), control);
}

}  // namespace
}  // namespace reshard

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "ucx",
                                               .version = reshard::ucx::library_version,
                                               .reason = reshard::reason,
                                               .make = reshard::make,
                                               .host_memory = true};
  return &module;
}
