// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/transport/control.h"
#include "reshard/transport/group.h"
#include "reshard/transport/transport.h"

namespace reshard::nccl {

/// "NCCL 2.27.3".
std::string library_version();

/// Why NCCL cannot be used on this machine ("no GPU: ..."), or "".
std::string unavailable_reason();

/// Collective. Each rank uses the current device of its thread, which no other rank of the group
/// may use; all later calls must come from threads with the same current device. Messages must be
/// in memory of that device, and all writes to it must be complete (synchronised) before
/// exchange().
///
/// NCCL matches messages by order and cannot withdraw them, so this transport guarantees less than
/// others: all ranks must call exchange() in the same order, and the sends of a call match the
/// receives of the same call on the peers; sizes are not compared; destroying an incomplete event
/// ends the group. See docs/transports.md.
///
/// Errors: `unsupported` if a rank has no GPU or two ranks have the same one; `deadline`; `aborted`
/// with the message of NCCL.
Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options);

}  // namespace reshard::nccl
