// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// Collective. `messages` with direct access to peers' memory beside its messages
/// (Capabilities::direct), by the means of shm, where all ranks of the group are processes or
/// threads of one host, RESHARD_SHM and the system let each reach all others, and `messages` has no
/// such access or registration of its own; else `messages` as it is. A rank that finds this
/// otherwise than its peers does no harm: callers agree on what all can (exec/agreement.h).
/// `control` must outlive it. Errors: what the control plane says. @pre messages carry memory of
/// the host
Result<std::unique_ptr<Transport>> with_host_memory(std::unique_ptr<Transport> messages,
                                                    ControlPlane& control, Deadline deadline);

}  // namespace reshard
