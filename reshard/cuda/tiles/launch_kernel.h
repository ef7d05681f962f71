// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/cuda/driver.h"
#include "reshard/cuda/stream.h"
#include "reshard/cuda/tiles/tiles.h"

namespace reshard::cuda {

/// The thread blocks that run at a time: `most_blocks`, or as many as the device holds if that is
/// not above 0.
inline unsigned blocks_at_a_time(const Device& device, int most_blocks) {
  return most_blocks > 0 ? static_cast<unsigned>(most_blocks)
                         : static_cast<unsigned>(device.multiprocessors()) * kTileBlocks;
}

/// Gives a stream a kernel with so many blocks of kTileThreads, whose only parameter is `launch`.
/// `what` names the call in errors: "cuLaunchKernel of fingerprints". Errors: the driver's.
template <class Launch>
Result<> launch_kernel(const Stream& stream, Function kernel, unsigned blocks, Launch launch,
                       const char* what) {
  const Device& device = stream.device();
  void* arguments[] = {&launch};
  return device.call(what, [&] {
    return device.driver().cuLaunchKernel(kernel, blocks, 1, 1, kTileThreads, 1, 1, 0,
                                          stream.handle(), arguments, nullptr);
  });
}

}  // namespace reshard::cuda
