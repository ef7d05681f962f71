// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/module.h"

#include "reshard/gpu_transport/nccl/transport.h"

extern "C" __attribute__((visibility("default"))) const reshard::TransportModule*
reshard_transport_module() {
  static const reshard::TransportModule module{.abi = reshard::kModuleAbi,
                                               .name = "nccl",
                                               .version = reshard::nccl::library_version,
                                               .reason = reshard::nccl::unavailable_reason,
                                               .make = reshard::nccl::make_transport,
                                               .broadcast = nullptr};
  return &module;
}
