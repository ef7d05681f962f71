// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reshard {

/// Identifies this host and network namespace: processes with equal identities can connect over
/// loopback.
std::string host_identity();

}  // namespace reshard
