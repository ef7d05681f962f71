// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

extern "C" const reshard::TransportModule* reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi + 1};
  return &module;
}
