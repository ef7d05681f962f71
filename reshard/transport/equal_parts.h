// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "reshard/base/result.h"

namespace reshard {

/// Errors of ControlPlane::all_gather_into(), the same whichever control plane says them.
Error wrong_room(std::size_t room, std::size_t ranks, std::size_t bytes);
Error unequal_part(std::size_t rank, std::size_t bytes, std::size_t mine);

}  // namespace reshard
