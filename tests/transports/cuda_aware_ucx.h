// SPDX-License-Identifier: Apache-2.0
// A model of a UCX that was built with CUDA, in front of the one that this machine has: functions
// of this program come before those of the library. The memory of the emulated GPU is host memory
// to the real library, so the model says that CUDA memory is supported, checks that every operation
// names the type of its memory, and passes it on without.
#pragma once

namespace reshard {

/// True unless RESHARD_TEST_GPU names a real GPU: UCX must then be built with CUDA.
bool models_cuda_aware_ucx();

}  // namespace reshard
