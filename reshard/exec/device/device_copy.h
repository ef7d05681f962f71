// SPDX-License-Identifier: Apache-2.0
// The ceiling that refits on one GPU are compared with: a copy of the same number of bytes by the
// driver, from one buffer of the GPU to another.
#pragma once

#include "reshard/cuda/stream.h"

namespace reshard {

/// Seconds of the fastest of several such copies, without the host's part. Blocks. Copies at most
/// 2 GiB and scales the result. 0 if `bytes` is 0 or memory is short. Errors: the driver's.
Result<double> plain_copy_seconds(const cuda::Stream& stream, Index bytes);

}  // namespace reshard
