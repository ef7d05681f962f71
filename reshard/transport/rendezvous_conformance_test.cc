// SPDX-License-Identifier: Apache-2.0
// Protects: the TCP control plane keeps the guarantees of every control plane, for threads and
// processes.
#include "reshard/transport/testing/conformance_testutil.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard {
namespace {

Result<std::unique_ptr<Transport>> nothing(ControlPlane& control) { return no_transport(control); }

const TransportUnderTest kThreads{
    "none", [](int n, const RankBody& body) { return run_joined_threads(n, nothing, body); }};
const TransportUnderTest kProcesses{
    "none", [](int n, const RankBody& body) { return run_ranks_as_processes(n, nothing, body); }};
RESHARD_TEST_CONTROL_PLANE(JoinedThreads, kThreads);
RESHARD_TEST_CONTROL_PLANE(JoinedProcesses, kProcesses);

}  // namespace
}  // namespace reshard
