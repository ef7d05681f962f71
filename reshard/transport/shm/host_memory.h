// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/transport/control.h"
#include "reshard/transport/group.h"
#include "reshard/transport/transport.h"

namespace reshard::shm {

/// Collective. Adds direct access to peers' memory (Capabilities::direct), as in shm, to a
/// transport, if all ranks of the group are on one host, RESHARD_SHM and the system permit access
/// between all of them, and `messages` has neither direct access nor registration of its own.
/// Otherwise returns `messages` unchanged. Ranks may come to different results: callers agree on
/// the capabilities that all ranks have. `control` must outlive the transport. Errors: those of the
/// control plane. Memory on a GPU cannot be shared (`unsupported`).
/// @pre `messages` moves host memory
Result<std::unique_ptr<Transport>> with_direct_access(std::unique_ptr<Transport> messages,
                                                      ControlPlane& control,
                                                      const TransportOptions& options);

}  // namespace reshard::shm
