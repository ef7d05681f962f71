// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include <gloo/config.h>

#include "reshard/transport/gloo/device.h"
#include "reshard/transport/gloo/wire.h"

namespace reshard {
namespace {

/// The library cannot say at run time what it is; its header says what it was built as.
std::string version() {
  return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) +
         "." + std::to_string(GLOO_VERSION_PATCH);
}

std::string reason() {
  const auto device = gloo_wire::make_device("", true);
  return device ? "" : device.error().message;
}

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const TransportOptions& options) {
  return make_message_engine(RESHARD_TRY(gloo_wire::GlooWire::make(control, options)), control);
}

}  // namespace
}  // namespace reshard

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "gloo",
                                               .version = reshard::version,
                                               .reason = reshard::reason,
                                               .make = reshard::make,
                                               .host_memory = true};
  return &module;
}
