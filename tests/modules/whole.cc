// SPDX-License-Identifier: Apache-2.0
// A complete module, whose library can be disabled by an environment variable.
#include <cstdlib>

#include "reshard/transport/module.h"

namespace reshard {
namespace {

std::string version() { return "Pigeon 3.2"; }

std::string reason() { return std::getenv("PIGEONS_FLY") != nullptr ? "" : "no pigeon is free"; }

Result<std::unique_ptr<Transport>> make(ControlPlane& control, const TransportOptions&) {
  return fail(Code::io, "rank " + std::to_string(control.rank().value()) + " lost its pigeon");
}

}  // namespace
}  // namespace reshard

extern "C" const reshard::TransportModule* reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "gloo",
                                               .version = reshard::version,
                                               .reason = reshard::reason,
                                               .make = reshard::make};
  return &module;
}
