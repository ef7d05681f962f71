// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/cuda/device.h"
#include "reshard/cuda/driver.h"

namespace reshard::cuda {

/// Writes an attribute of the memory at `at` to `answer`, which has the attribute's type. Returns
/// false if CUDA does not know the address, or has no such attribute of it. Errors: the driver's.
Result<bool> ask_of_pointer(const Device& device, PointerAttribute what, const void* at,
                            void* answer);

}  // namespace reshard::cuda
