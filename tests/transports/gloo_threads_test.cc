// SPDX-License-Identifier: Apache-2.0
// Protects: gloo keeps the guarantees of every transport with ranks that are threads of one
// process.
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kThreads{"gloo", module_threads("gloo")};
RESHARD_TEST_TRANSPORT(GlooThreads, kThreads);

}  // namespace
}  // namespace reshard
