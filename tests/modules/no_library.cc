// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

int absent();

extern "C" const reshard::TransportModule* reshard_transport_module() {
  static const reshard::TransportModule module{.abi = static_cast<std::uint64_t>(absent())};
  return &module;
}
