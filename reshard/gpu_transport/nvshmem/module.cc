// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include "reshard/gpu_transport/nvshmem/transport.h"

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "nvshmem",
                                               .version = reshard::nvshmem::library_version,
                                               .reason = reshard::nvshmem::unavailable_reason,
                                               .make = reshard::nvshmem::make_transport,
                                               .broadcast = nullptr};
  return &module;
}
