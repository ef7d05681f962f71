// SPDX-License-Identifier: Apache-2.0
// Protects: messages over any wire keep the guarantees of every transport, by whichever method
// bulks travel.
#include "reshard/transport/testing/conformance_testutil.h"
#include "reshard/transport/testing/loopback_testutil.h"

namespace reshard {
namespace {

const TransportUnderTest kPull{"loopback",
                               run_group_as_threads<LoopbackGroup<LoopbackMethod::pull>>};
const TransportUnderTest kPlace{"loopback",
                                run_group_as_threads<LoopbackGroup<LoopbackMethod::put>>};
const TransportUnderTest kTagged{"loopback",
                                 run_group_as_threads<LoopbackGroup<LoopbackMethod::tagged>>};
RESHARD_TEST_TRANSPORT(EnginePull, kPull);
RESHARD_TEST_TRANSPORT(EnginePlace, kPlace);
RESHARD_TEST_TRANSPORT(EngineTagged, kTagged);

}  // namespace
}  // namespace reshard
