// SPDX-License-Identifier: Apache-2.0
// Protects: swap_model_weights puts every value in place over ucx.
#include "reshard/megatron/swap_suite_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard::megatron {
namespace {

const TransportUnderTest kUcx{"ucx", module_processes("ucx")};
RESHARD_TEST_SWAPS(Ucx, kUcx);

}  // namespace
}  // namespace reshard::megatron
