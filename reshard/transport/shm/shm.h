// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/transport/group.h"

namespace reshard::shm {

/// Collective. Makes a data plane between processes of one host (or threads of one process) that
/// needs no server and no file: each rank has a mailbox that the others map. The receiver copies
/// bytes once, from shared buffers (HostBuffer::Options::shared) or, if the kernel permits it, from
/// any memory; otherwise bytes are staged and copied twice. `control` must outlive the transport.
/// Errors, identical on every rank: `unsupported` names a rank that is on another host or cannot be
/// reached, and why; errors of the control plane.
Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options);

/// Why make_transport() cannot work on this host, or "".
std::string unavailable_reason();

}  // namespace reshard::shm
