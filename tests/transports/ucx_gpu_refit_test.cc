// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over a UCX that takes GPU memory, whichever ranks
// have their tensors there.
#include "reshard/exec/rank_refit_testutil.h"
#include "tests/transports/cuda_aware_ucx.h"

namespace reshard {
namespace {

const TransportUnderTest kUcx{"ucx", ucx_with_gpu()};
const TransportUnderTest kPuts{"ucx", ucx_with_gpu("RESHARD_UCX_PUT", "on")};
RESHARD_TEST_REFITS(UcxGpu, kUcx);
RESHARD_TEST_REFITS(UcxGpuPuts, kPuts);

}  // namespace
}  // namespace reshard
