// SPDX-License-Identifier: Apache-2.0
// Protects: the message engine keeps the promises of every transport, whichever way bulks go.
#include "reshard/transport/testing/conformance_testutil.h"
#include "reshard/transport/testing/loopback_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kPull{"loopback", run_group_as_threads<LoopbackGroup<LoopbackWay::pull>>};
const TransportUnderTest kPlace{"loopback",
                                run_group_as_threads<LoopbackGroup<LoopbackWay::place>>};
const TransportUnderTest kTagged{"loopback",
                                 run_group_as_threads<LoopbackGroup<LoopbackWay::tagged>>};
RESHARD_TEST_TRANSPORT(EnginePull, kPull);
RESHARD_TEST_TRANSPORT(EnginePlace, kPlace);
RESHARD_TEST_TRANSPORT(EngineTagged, kTagged);

}  // namespace
}  // namespace reshard
