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

std::string gpu_reason() {
  if (std::string why = GpuPointerQuery::unavailable_reason(); !why.empty()) return why;
  const auto worker = Worker::make_on_host();
  if (!worker) return worker.error().message;
  return (*worker)->takes_gpu_memory() ? "" : "UCX was built without CUDA, or UCX_TLS excludes it";
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
                                               .host_memory = true,
                                               .gpu_reason = reshard::ucx::gpu_reason};
  return &module;
}
