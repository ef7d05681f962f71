// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/transport/group.h"

namespace reshard {

/// Collective. The data plane among processes of one host (or threads of one process), which needs
/// no server and no file: each rank's mailbox is memory that the others map, and bytes are copied
/// once, by the receiver, from shared buffers (HostBuffer::Options::shared) or, where the kernel
/// allows it, from any memory. Where neither is allowed, bytes are staged and copied twice.
/// `control` must outlive it. Errors, the same on every rank: `unsupported` names the rank that is
/// on another host, or out of reach and why; what the control plane says.
Result<std::unique_ptr<Transport>> make_shm(ControlPlane& control, const TransportOptions& options);

/// Empty, or why make_shm() cannot work on this host.
std::string shm_reason();

}  // namespace reshard
