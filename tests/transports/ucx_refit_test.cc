// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over ucx.
#include "reshard/exec/rank_refit_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kUcx{"ucx", module_processes("ucx")};
const TransportUnderTest kTcp{"ucx", module_processes("ucx", "UCX_TLS", "tcp")};
RESHARD_TEST_REFITS(Ucx, kUcx);
RESHARD_TEST_REFITS(UcxTcp, kTcp);

}  // namespace
}  // namespace reshard
