// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/plan/relays/relays.h"
#include "reshard/transport/control.h"
#include "reshard/transport/deadline.h"

namespace reshard {

/// Collective. The places of all ranks by their hosts, for PlanOptions::relays: `host` is any name
/// of this rank's host (host_identity()), or empty if this rank cannot relay. Each host counts as
/// one domain with one network interface. Null, on all ranks, if some rank cannot relay, or all are
/// on one host. Errors: those of all_gather(); `corrupt` if a rank sent a longer name than allowed.
/// @pre `host` has at most kMaxHostName bytes
Result<std::shared_ptr<const RelayOptions>> gather_places(const std::string& host,
                                                          ControlPlane& control, Deadline deadline);

/// Bytes.
inline constexpr std::size_t kMaxHostName = 1024;

}  // namespace reshard
