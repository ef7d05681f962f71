// SPDX-License-Identifier: Apache-2.0
// Protects: a refit puts every element in place over ucx on one host.
#include "reshard/exec/rank_refit_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kUcx{"ucx", module_processes("ucx")};
const TransportUnderTest kPuts{"ucx", module_processes("ucx", "RESHARD_UCX_PUT", "on")};
const TransportUnderTest kTcp{"ucx", module_processes("ucx", "UCX_TLS", "tcp")};
RESHARD_TEST_REFITS(Ucx, kUcx);
RESHARD_TEST_REFITS(UcxPuts, kPuts);
RESHARD_TEST_REFITS(UcxTcp, kTcp);

}  // namespace
}  // namespace reshard
