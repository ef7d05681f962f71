// SPDX-License-Identifier: Apache-2.0
// Protects: swap_model_weights puts every value in place over gloo.
#include "reshard/megatron/swap_suite_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard::megatron {
namespace {

const TransportUnderTest kGloo{"gloo", module_processes("gloo")};
RESHARD_TEST_SWAPS(Gloo, kGloo);

}  // namespace
}  // namespace reshard::megatron
