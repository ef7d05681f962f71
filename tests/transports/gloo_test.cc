// SPDX-License-Identifier: Apache-2.0
// Protects: gloo keeps the guarantees of every transport.
#include "reshard/transport/testing/conformance_testutil.h"
#include "tests/transports/module_ranks_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kProcesses{"gloo", module_processes("gloo")};
RESHARD_TEST_TRANSPORT(GlooProcesses, kProcesses);

}  // namespace
}  // namespace reshard
