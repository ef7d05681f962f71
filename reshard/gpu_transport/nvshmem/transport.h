// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/gpu_transport/nvshmem/runtime.h"
#include "reshard/transport/group.h"

namespace reshard::nvshmem {

/// "NVSHMEM 3.8.0", or "" if the library cannot be loaded.
std::string library_version();

/// Why NVSHMEM cannot be used on this machine ("no NVIDIA driver: ..."), or "".
std::string unavailable_reason();

/// Collective. The transport of GPU `options.gpu`, with symmetric staging of
/// RESHARD_NVSHMEM_STAGING MiB (256 by default; the same on all ranks). Messages may be in the
/// memory of that GPU and in host memory. Between two ranks it differs from other transports in
/// this: the messages of a sender arrive in the order in which it passed them to exchange(), so a
/// receiver must post the receive of each before it waits for a later one; and a failed event ends
/// the group on its rank, and fails what others exchange with that rank. See docs/transports.md.
///
/// Errors: `unsupported` if a rank has no library, driver or GPU (says which); those of
/// Runtime::enter().
Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options);

/// The same in a world of the caller's, which must outlive the transport and its events.
Result<std::unique_ptr<Transport>> make_transport(Runtime& runtime, ControlPlane& control,
                                                  const std::shared_ptr<const cuda::Device>& device,
                                                  std::size_t staging_bytes, Deadline deadline);

}  // namespace reshard::nvshmem
