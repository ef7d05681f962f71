// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/index/interval.h"

namespace reshard {

/// Bytes of memory that this process can allocate without swapping: the system's available memory
/// or what the control group allows, whichever is less. 0 if the system does not report it.
Index available_memory();

}  // namespace reshard
