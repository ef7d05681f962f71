// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "reshard/transport/transport.h"

namespace reshard {

/// Errors: `invalid_argument`, naming both, when the group of `size` ranks has no rank `peer`.
Result<> check_member(std::string_view what, Rank peer, int size);

/// Errors: `invalid_argument` for the first piece that is not inside the peer's memory.
Result<> check_inside(const RemoteMemory& from, std::span<const Get> pieces);

}  // namespace reshard
