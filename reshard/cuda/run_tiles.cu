// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/run_tiles.h"

extern "C" __global__ void __launch_bounds__(reshard::cuda::kTileThreads,
                                             reshard::cuda::kTileBlocks)
    reshard_run_tiles(const __grid_constant__ reshard::cuda::TileLaunch launch) {
  reshard::cuda::run_tiles(launch, {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
}
