// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over ucx on one host.
#include "reshard/exec/rank_refit_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kUcx{"ucx", module_processes("ucx")};
RESHARD_TEST_REFITS(Ucx, kUcx);

}  // namespace
}  // namespace reshard
