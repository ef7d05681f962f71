// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include <gloo/config.h>

#include "reshard/transport/gloo/device.h"
#include "reshard/transport/gloo/wire.h"

namespace reshard::gloo {
namespace {

/// The library does not report its version at run time, so this is that of its headers.
std::string version() {
  return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) +
         "." + std::to_string(GLOO_VERSION_PATCH);
}

std::string reason() {
  const auto device = make_device("", true);
  return device ? "" : device.error().message;
}

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const TransportOptions& options) {
  return messages::make_transport(RESHARD_TRY(GlooWire::make(control, options)), control);
}

}  // namespace
}  // namespace reshard::gloo

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "gloo",
                                               .version = reshard::gloo::version,
                                               .reason = reshard::gloo::reason,
                                               .make = reshard::gloo::make,
                                               .host_memory = true};
  return &module;
}
