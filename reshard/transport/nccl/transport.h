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

/// Empty, or why NCCL cannot be used here: "no GPU: ...".
std::string unavailable_reason();

/// Collective. Each rank takes the device that is current in its thread, which no other rank of the
/// group may have; all later calls come from threads with the same current device. Messages lie in
/// memory of that device, and what was written to it must be finished (synchronised) before
/// exchange().
///
/// NCCL matches by order and cannot withdraw, so a group of this transport promises less than
/// others: all ranks call exchange() in the same order, and one call's sends meet the receives of
/// the peers' same call; sizes are not compared; an event that is given up ends the group.
/// docs/transports.md.
///
/// Errors: `unsupported` when a rank has no GPU or two have the same; `deadline`; `aborted` with
/// NCCL's words.
Result<std::unique_ptr<Transport>> make_transport(ControlPlane& control,
                                                  const TransportOptions& options);

}  // namespace reshard::nccl
