// SPDX-License-Identifier: Apache-2.0
// Protects: ucx keeps the promises of every transport, over shared memory and over TCP.
#include "reshard/transport/conformance_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kProcesses{"ucx", module_processes("ucx")};
const TransportUnderTest kTcp{"ucx", module_processes("ucx", "UCX_TLS", "tcp")};
RESHARD_TEST_TRANSPORT(UcxProcesses, kProcesses);
RESHARD_TEST_TRANSPORT(UcxTcpProcesses, kTcp);

}  // namespace
}  // namespace reshard
