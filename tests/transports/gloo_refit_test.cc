// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over gloo.
#include "reshard/exec/rank_refit_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kGloo{"gloo", module_processes("gloo")};
RESHARD_TEST_REFITS(Gloo, kGloo);

}  // namespace
}  // namespace reshard
