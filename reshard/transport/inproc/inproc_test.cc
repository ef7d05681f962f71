// SPDX-License-Identifier: Apache-2.0
// Protects: inproc keeps the guarantees of every transport.
#include "reshard/transport/inproc/inproc.h"

#include "reshard/transport/testing/conformance_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kInproc{"inproc", run_group_as_threads<InprocGroup>};
RESHARD_TEST_TRANSPORT(Inproc, kInproc);

}  // namespace
}  // namespace reshard
