// SPDX-License-Identifier: Apache-2.0
// Protects: ucx keeps the guarantees of every transport, over shared memory and over TCP, by
// rendezvous and by puts.
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kProcesses{"ucx", module_processes("ucx")};
const TransportUnderTest kTcp{"ucx", module_processes("ucx", "UCX_TLS", "tcp")};
const TransportUnderTest kPuts{"ucx", module_processes("ucx", "RESHARD_UCX_PUT", "on")};
RESHARD_TEST_TRANSPORT(UcxPuts, kPuts);
RESHARD_TEST_TRANSPORT(UcxProcesses, kProcesses);
RESHARD_TEST_TRANSPORT(UcxTcpProcesses, kTcp);

}  // namespace
}  // namespace reshard
