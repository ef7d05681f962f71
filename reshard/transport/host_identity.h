// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reshard {

/// What tells this host, as its network sees it (the network namespace), from others: processes
/// with the same identity reach each other by loopback.
std::string host_identity();

}  // namespace reshard
