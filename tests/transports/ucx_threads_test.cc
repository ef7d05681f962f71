// SPDX-License-Identifier: Apache-2.0
// Protects: ucx keeps the guarantees of every transport with ranks that are threads of one process.
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kThreads{"ucx", module_threads("ucx")};
const TransportUnderTest kTcpThreads{"ucx", module_threads("ucx", "UCX_TLS", "tcp")};
RESHARD_TEST_TRANSPORT(UcxThreads, kThreads);
RESHARD_TEST_TRANSPORT(UcxTcpThreads, kTcpThreads);

}  // namespace
}  // namespace reshard
